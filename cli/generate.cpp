#include <pardiff/core/check.h>
#include <pardiff/core/dtype_name.h>
#include <pardiff/core/log.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/model_folder.h>
#include <pardiff/io/safetensors.h>
#include <pardiff/pipelines/diffusion_pipeline.h>

#include <chrono>
#include <cstdlib>
#include <iomanip>
#include <memory>
#include <sstream>

#include "cli/automatic_layout.h"
#include "cli/config.h"
#include "cli/contact_sheet.h"
#include "cli/dtype.h"
#include "cli/flags.h"
#include "cli/generate_flags.h"
#include "cli/generate_report.h"
#include "cli/preview.h"
#include "cli/progress.h"
#include "cli/repetition.h"
#include "cli/subcommand.h"
#include "cli/trace_file.h"
#include "cli/trace_summary.h"

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kUsualSize = 64;  // 1024 pixels, in multiples of a size

const Clock::time_point program_started = Clock::now();

// Files that this run has put in place, which must go again if it fails before its end.
class WrittenFiles {
 public:
  ~WrittenFiles() {
    std::error_code ignored;
    for (const auto& path : paths_) fs::remove(path, ignored);
  }
  void add(const fs::path& path) { paths_.push_back(path); }
  void keep() { paths_.clear(); }

 private:
  std::vector<fs::path> paths_;
};

void write_dump(const fs::path& path, const FluxPipelineOutput& output) {
  std::vector<NamedTensor> tensors = {
      {"image", output.image}, {"token_ids.clip", output.clip_token_ids}, {"token_ids.t5", output.t5_token_ids}};
  for (size_t step = 0; step < output.latents.size(); ++step) {
    tensors.push_back({text_of("latents.", step), output.latents[step]});
  }
  write_safetensors(path, tensors);
}

class Generation {
 public:
  Generation(const GenerateFlags& flags, const std::optional<Repetition>& repetition, const RankLayout& layout,
             World& world)
      : flags_(flags),
        repetition_(repetition),
        layout_(layout),
        world_(world),
        dtype_(choose_dtype(flags.dtype, world)) {}

  void run() {
    const TraceScope scope(is_traced() ? &trace_ : nullptr);
    announce();
    auto pipeline = DiffusionPipeline::from_pretrained(
        flags_.model, world_,
        {.dtype = dtype_,
         .variant = flags_.variant,
         .transformer_file = flags_.transformer,
         .parallel_config = layout_.parallel ? ParallelChoice(*layout_.parallel) : ParallelChoice(),
         .attention_backend = flags_.attention_backend});
    const auto output = denoise(pipeline);
    const auto report = gather_report(flags_, layout_, dtype_, output, world_);
    const auto trace = gather_trace(trace_, world_);
    if (world_.rank() == 0) write(output, report, trace);
    const auto summary = trace_summary(trace_, world_);
    if (is_traced()) {
      for (const auto& line : summary) note(line);
    }
  }

 private:
  bool is_traced() const { return !flags_.trace.empty() || flags_.verbosity.verbose || flags_.verbosity.debug; }

  void announce() const {
    if (world_.rank() != 0) return;
    say(text_of("loading ", flags_.model, " (", dtype_ ? dtype_name(*dtype_) : "dtype of the files", " on ",
                world_.device().str(), ", ", layout_.to_string(), ", ", world_.threads(),
                world_.threads() == 1 ? " thread" : " threads", layout_.ranks == 1 ? ")" : " each)"));
  }

  FluxPipelineOutput denoise(FluxPipeline& pipeline) const {
    Progress progress(world_.rank() == 0);
    auto inputs = flags_.pipeline_inputs();
    const auto usual = kUsualSize * pipeline.size_multiple();
    Preview preview(pipeline, {flags_.height.value_or(usual), flags_.width.value_or(usual)}, flags_.preview_every,
                    flags_.preview_path(), world_.rank() == 0);
    inputs.callback_on_step_end = [&](StepEnd& end) {
      preview.step_done(end);
      progress.step_done(end.step + 1, end.num_inference_steps);
    };
    return pipeline.generate(inputs, {.keep_latents = !flags_.dump_tensors.empty()});
  }

  void write(const FluxPipelineOutput& output, const RunReport& report, const std::string& trace) const {
    WrittenFiles written;
    const auto origin = PictureOrigin::here(resolve_model(flags_.model), flags_.variant, flags_.transformer);
    const auto paths = flags_.picture_paths();
    for (size_t i = 0; i < paths.size(); ++i) {
      const auto index = flags_.only.value_or(static_cast<int64_t>(i));
      const auto text = picture_text(flags_, layout_, dtype_, output, world_, origin, index);
      output.images.at(static_cast<size_t>(index)).save(paths[i], text);
      written.add(paths[i]);
    }
    if (!flags_.contact_sheet.empty()) {
      contact_sheet(output.images).save(flags_.contact_sheet);
      written.add(flags_.contact_sheet);
    }
    if (!flags_.dump_tensors.empty()) {
      write_dump(flags_.dump_tensors, output);
      written.add(flags_.dump_tensors);
    }
    if (!flags_.trace.empty()) {
      write_text_file(flags_.trace, trace);
      written.add(flags_.trace);
    }
    if (!flags_.report.empty()) write_text_file(flags_.report, report.to_json(program_started));
    written.keep();
    for (const auto& path : paths) say_where(path, output);
    if (repetition_ && paths.size() == 1) {
      const auto outcome = repetition_->outcome(paths.front());
      if (!outcome.empty()) say(outcome);
    }
  }

  void say_where(const fs::path& path, const FluxPipelineOutput& output) const {
    std::ostringstream seconds;
    seconds << std::fixed << std::setprecision(1)
            << std::chrono::duration<double>(Clock::now() - program_started).count();
    say(text_of("wrote ", path.string(), " (", output.width, "x", output.height, ", ", output.num_inference_steps,
                " steps, seed ", output.seeds.empty() ? 0 : output.seeds.front(), ", ", seconds.str(), " s)"));
  }

  const GenerateFlags& flags_;
  const std::optional<Repetition>& repetition_;
  const RankLayout& layout_;
  World& world_;
  std::optional<at::ScalarType> dtype_;
  Trace trace_;
};

// What is to be found out once, before anything is loaded.
void check_surroundings(const GenerateFlags& flags, const std::optional<Repetition>& repetition) {
  flags.check_outputs();
  const auto folder = resolve_model(flags.model);
  if (!repetition) return;
  for (const auto& difference : repetition->differences(PictureOrigin::here(folder, flags.variant, flags.transformer)))
    warn(difference);
}

int generate(GenerateFlags& flags, Flags& declared) {
  if (!flags.config.empty()) give_values(declared, ConfigFile::open(flags.config));
  std::optional<Repetition> repetition;
  if (!flags.from.empty()) repetition.emplace(declared, flags);
  flags.verbosity.apply();
  flags.validate();
  const auto env = LaunchEnv::from_environment();
  const auto layout = choose_layout(flags.ranks, env);
  flags.read_prompt_file(layout.ranks);
  FluxPipeline::check_arguments(flags.pipeline_inputs());
  if (layout.parallel) FluxPipeline::check_layout(flags.pipeline_inputs(), *layout.parallel);
  if (!env) check_surroundings(flags, repetition);  // with another launcher rank 0 does it below
  if (layout.to_start > 0) return launch_ranks(layout.to_start, own_command_line());
  unsetenv("PARDIFF_NPROC_PER_NODE");  // has been heeded
  return run(
      [&](World& world) {
        if (env && env->launcher != "pardiff" && world.rank() == 0) check_surroundings(flags, repetition);
        auto planned = layout;
        if (planned.is_automatic) choose_automatic_layout(flags, planned, world);
        Generation(flags, repetition, planned, world).run();
      },
      flags.world_options());
}

}  // namespace

Action declare_generate(Flags& declared) {
  auto flags = std::make_shared<GenerateFlags>();
  flags->declare(declared);
  return [flags, &declared] { return generate(*flags, declared); };
}

}  // namespace pardiff::cli
