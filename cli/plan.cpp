#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/plan/calibrate.h>
#include <pardiff/plan/planner.h>

#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/chart.h"
#include "cli/dtype.h"
#include "cli/flags.h"
#include "cli/plan_work.h"
#include "cli/ranks.h"
#include "cli/subcommand.h"

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kMostRanks = 1024;
constexpr int64_t kMostPixelsPerSide = 16384;
constexpr size_t kMostShown = 12;  // of the layouts that can run, and of the others
constexpr size_t kMostBars = 20;

struct PlanFlags {
  std::string model;
  std::string kind;
  fs::path kinds;
  int64_t count = 1;
  int64_t height = 1024, width = 1024, max_sequence_length = 512, num_images = 1, steps = 28;
  bool true_guidance = false;
  std::string dtype = "bfloat16", profile = "pardiff";
  bool all = false;
  fs::path json, plot, calibrate;
  int64_t threads = 0;  // 0: not given
  std::string device = "auto", comm = "auto";

  void declare(Flags& flags) {
    flags.group("What to plan", "pardiff plan flux-dev --kind l20 --count 4 --height 1008 --width 1008")
        .argument("PRESET|CONFIG", model,
                  text_of(joined(preset_names()),
                          ", a folder in the diffusers layout (its weights are not needed), or a JSON file"))
        .text("--kind", kind, "What the ranks run on: a100, h100, h200, l20, l40s, rtx4090, rtx4090-48gb")
        .path("--kinds", kinds, "A JSON file with kinds of your own, or other figures for known ones")
        .integer("--count", count, {1, kMostRanks}, "Ranks; default 1")
        .integer("--height", height, {16, kMostPixelsPerSide}, "Pixels; default 1024")
        .integer("--width", width, {16, kMostPixelsPerSide}, "Pixels; default 1024")
        .integer("--steps", steps, {1, 10'000}, "Denoising steps; default 28")
        .integer("--max-sequence-length", max_sequence_length, {1, 512}, "Text tokens; default 512")
        .integer("--num-images", num_images, {1, 1024}, "Pictures in all; default 1")
        .toggle("--true-guidance", true_guidance, "Two passes a step, as with a negative prompt")
        .choice("--dtype", dtype, {"float32", "bfloat16", "float16"}, "Default bfloat16")
        .choice("--profile", profile, {"pardiff", "reference"},
                "Whose algorithms are priced: pardiff's, or those of diffusers; default pardiff");
    flags.group("What to write", "pardiff plan flux-dev --kind h100 --count 8 --json plan.json --plot plan.svg")
        .toggle("--all", all, "Print every layout, not the best ones only")
        .path("--json", json, "Write the plan as JSON")
        .path("--plot", plot, "Write the step times as a picture, a .svg");
    flags
        .group(
            "Measuring this machine",
            "pardiff plan models/flux-shapes --calibrate here.json --count 2 --device cpu --dtype float32 --height 64 "
            "--width 64")
        .path("--calibrate", calibrate,
              "Measure this machine with --count ranks, write its kind as JSON and plan for it")
        .integer("--threads", threads, {1, 1024}, "With --calibrate: CPU threads of each rank, as for generate")
        .choice("--device", device, {"cpu", "cuda"}, "With --calibrate: default cuda when there is one")
        .choice("--comm", comm, {"auto", "shm", "gloo", "nccl"}, "With --calibrate: transport between ranks");
  }

  void validate() const {
    check<UsageError>(!kind.empty() || !calibrate.empty(),
                      "--kind is missing. Say what the ranks run on, such as --kind l20, or measure it: --calibrate.");
    check<UsageError>(kind.empty() || calibrate.empty(), "both --kind and --calibrate are given. Choose one.");
    check<UsageError>(!calibrate.empty() || (threads == 0 && device == "auto" && comm == "auto"),
                      "--threads, --device and --comm are for --calibrate. Add it, or leave them off.");
    check<UsageError>(calibrate.empty() || calibrate.extension() == ".json", "--calibrate is '", calibrate.string(),
                      "'. Give a name that ends in .json.");
    check<UsageError>(json.empty() || json.extension() == ".json", "--json is '", json.string(),
                      "'. Give a name that ends in .json.");
    check<UsageError>(plot.empty() || plot.extension() == ".svg", "--plot is '", plot.string(),
                      "'. Give a name that ends in .svg.");
    for (const auto& path : {json, plot, calibrate}) {
      if (!path.empty()) AtomicFile::check_writable(path);
    }
  }

  plan::Work work() const {
    const auto configs = flux_configs(model);
    plan::Work work{.transformer = configs.transformer,
                    .vae = configs.vae,
                    .other_parameters = parameters_beside_transformer(configs),
                    .height = height,
                    .width = width,
                    .text_tokens = max_sequence_length,
                    .pictures = num_images,
                    .true_guidance = true_guidance,
                    .steps = steps,
                    .dtype = dtype_named(dtype)};
    check<UsageError>(work.image_tokens() > 0, "a picture of ", height, "x", width,
                      " has no tokens. Give more pixels.");
    return work;
  }
};

double milliseconds(double seconds) { return 1000 * seconds; }
double gigabytes(double bytes) { return bytes / 1e9; }

// Pictures follow one another where a group has several; a batch of them is one step longer.
double seconds_for_all(const plan::Layout& layout, const plan::Work& work) {
  return layout.step.total() * static_cast<double>(work.steps);
}

class Report {
 public:
  Report(const PlanFlags& flags, const plan::Work& work, const plan::Machine& machine,
         const std::vector<plan::Layout>& layouts)
      : flags_(flags), work_(work), machine_(machine), layouts_(layouts) {}

  void print() const {
    std::cout << title() << "\n";
    print_possible();
    print_refused();
    if (layouts_.front().is_possible()) {
      std::cout << "first: pardiff generate " << plan::generate_flags(layouts_.front().config) << "\n";
    }
  }

  std::string to_json() const {
    auto rows = Json::array();
    for (const auto& layout : layouts_) rows.push_back(json_of(layout));
    const Json plan = {{"version", version_line().substr(version_line().find(' ') + 1)},
                       {"model", flags_.model},
                       {"kind", machine_.name},
                       {"profile", flags_.profile},
                       {"ranks", flags_.count},
                       {"height", work_.height},
                       {"width", work_.width},
                       {"image_tokens", work_.image_tokens()},
                       {"text_tokens", work_.text_tokens},
                       {"pictures", work_.pictures},
                       {"true_guidance", work_.true_guidance},
                       {"steps", work_.steps},
                       {"dtype", flags_.dtype},
                       {"layouts", rows}};
    return plan.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  }

  std::string to_svg() const {
    BarChart chart{.title = title(), .axis = "a step, ms", .parts = {"compute", "exchange", "host"}, .bars = {}};
    for (const auto& layout : layouts_) {
      if (!layout.is_possible() || chart.bars.size() == kMostBars) break;
      const auto& step = layout.step;
      chart.bars.push_back({plan::description(layout.config),
                            {milliseconds(step.compute), milliseconds(step.exchange), milliseconds(step.host)},
                            text_of(four_digits(milliseconds(step.total())), " ms, ",
                                    four_digits(gigabytes(layout.memory.total())), " GB")});
    }
    return chart.to_svg();
  }

 private:
  std::string title() const {
    return text_of(flags_.model, ", ", work_.pictures, work_.pictures == 1 ? " picture of " : " pictures of ",
                   work_.height, "x", work_.width, ", ", work_.text_tokens, " text tokens, ", flags_.dtype, ", on ",
                   flags_.count, " x ", machine_.name, flags_.profile == "reference" ? " (as the reference runs)" : "");
  }

  Json json_of(const plan::Layout& layout) const {
    Json row = {{"layout", plan::description(layout.config)},
                {"flags", plan::generate_flags(layout.config)},
                {"fits", layout.is_possible()}};
    if (!layout.is_possible()) row["why_not"] = layout.refusal;
    if (layout.step.total() == 0) return row;  // not priced: the library refuses it
    row["step_seconds"] = {{"total", layout.step.total()},
                           {"compute", layout.step.compute},
                           {"exchange", layout.step.exchange},
                           {"host", layout.step.host}};
    row["denoise_seconds"] = seconds_for_all(layout, work_);
    row["memory_bytes"] = {{"total", std::round(layout.memory.total())},
                           {"weights", std::round(layout.memory.weights)},
                           {"working", std::round(layout.memory.working)}};
    return row;
  }

  static void print_row(const std::string& layout, const std::vector<std::string>& cells) {
    std::cout << "  " << std::left << std::setw(52) << layout << std::right;
    for (const auto& cell : cells) std::cout << std::setw(10) << cell;
    std::cout << "\n";
  }

  void print_possible() const {
    print_row("layout", {"step ms", "compute", "exchange", "host", "all s", "memory GB"});
    size_t shown = 0, count = 0;
    for (const auto& layout : layouts_) {
      if (!layout.is_possible()) break;
      ++count;
      if (!flags_.all && shown == kMostShown) continue;
      ++shown;
      const auto& step = layout.step;
      print_row(plan::description(layout.config),
                {four_digits(milliseconds(step.total())), four_digits(milliseconds(step.compute)),
                 four_digits(milliseconds(step.exchange)), four_digits(milliseconds(step.host)),
                 four_digits(seconds_for_all(layout, work_)), four_digits(gigabytes(layout.memory.total()))});
    }
    if (count == 0) std::cout << "  none\n";
    if (shown < count) std::cout << "  ... and " << count - shown << " slower ones (--all shows them)\n";
  }

  void print_refused() const {
    size_t shown = 0, count = 0;
    for (const auto& layout : layouts_) {
      if (layout.is_possible()) continue;
      if (count++ == 0) std::cout << "cannot run:\n";
      if (!flags_.all && shown == kMostShown) continue;
      ++shown;
      std::cout << "  " << plan::description(layout.config) << ": " << layout.refusal << "\n";
    }
    if (shown < count) std::cout << "  ... and " << count - shown << " more (--all shows them)\n";
  }

  const PlanFlags& flags_;
  const plan::Work& work_;
  const plan::Machine& machine_;
  const std::vector<plan::Layout>& layouts_;
};

void report_plan(const PlanFlags& flags, const plan::Work& work, const plan::Machine& machine) {
  const auto profile = flags.profile == "reference" ? plan::Profile::kReference : plan::Profile::kPardiff;
  const auto layouts = plan::plan(work, machine, static_cast<int>(flags.count), profile);
  const Report report(flags, work, machine, layouts);
  report.print();
  if (!flags.json.empty()) write_text_file(flags.json, report.to_json());
  if (!flags.plot.empty()) write_text_file(flags.plot, report.to_svg());
}

// Under a launcher its ranks, else as many of its own as are asked for.
int calibrate(PlanFlags& flags, const plan::Work& work) {
  const auto env = LaunchEnv::from_environment();
  if (!env && flags.count > 1) return launch_ranks(static_cast<int>(flags.count), own_command_line());
  check<UsageError>(!env || env->world_size == flags.count, "--count is ", flags.count, ", and there are ",
                    env ? env->world_size : 1, " ranks. Make them equal.");
  unsetenv("PARDIFF_NPROC_PER_NODE");
  const WorldOptions options{.device = flags.device, .comm = flags.comm, .threads = static_cast<int>(flags.threads)};
  return run(
      [&](World& world) {
        const auto machine = plan::measured(work, world);
        if (world.rank() != 0) return;
        write_text_file(flags.calibrate, machine.to_json());
        report_plan(flags, work, machine);
      },
      options);
}

int make_plan(PlanFlags& flags) {
  flags.validate();
  const auto work = flags.work();
  if (!flags.calibrate.empty()) return calibrate(flags, work);
  report_plan(flags, work, machine_named(flags.kind, flags.kinds));
  return 0;
}

}  // namespace

Action declare_plan(Flags& declared) {
  auto flags = std::make_shared<PlanFlags>();
  flags->declare(declared);
  return [flags] { return make_plan(*flags); };
}

}  // namespace pardiff::cli
