#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/model_folder.h>
#include <pardiff/io/safetensors.h>
#include <pardiff/pipelines/diffusion_pipeline.h>

#include <chrono>
#include <cstdlib>
#include <iomanip>
#include <memory>
#include <sstream>

#include "cli/dtype.h"
#include "cli/flags.h"
#include "cli/generate_flags.h"
#include "cli/generate_report.h"
#include "cli/progress.h"
#include "cli/subcommand.h"
#include "cli/trace_file.h"

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

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
  Generation(const GenerateFlags& flags, const RankLayout& layout, World& world)
      : flags_(flags), layout_(layout), world_(world), dtype_(choose_dtype(flags.dtype, world)) {}

  void run() {
    const TraceScope scope(flags_.trace.empty() ? nullptr : &trace_);
    announce();
    auto pipeline = DiffusionPipeline::from_pretrained(
        flags_.model, world_,
        {.dtype = dtype_,
         .variant = flags_.variant,
         .parallel_config = layout_.parallel ? ParallelChoice(*layout_.parallel) : ParallelChoice(),
         .attention_backend = flags_.attention_backend});
    const auto output = denoise(pipeline);
    const auto report = gather_report(flags_, layout_, dtype_, output, world_);
    const auto trace = gather_trace(trace_, world_);
    if (world_.rank() == 0) write(output, report, trace);
  }

 private:
  void announce() const {
    if (world_.rank() != 0) return;
    say(text_of("loading ", flags_.model, " (", dtype_ ? dtype_name(*dtype_) : "dtype of the files", " on ",
                world_.device().str(), ", ", layout_.to_string(), ", ", world_.threads(),
                world_.threads() == 1 ? " thread" : " threads", layout_.ranks == 1 ? ")" : " each)"));
  }

  FluxPipelineOutput denoise(FluxPipeline& pipeline) const {
    Progress progress(world_.rank() == 0);
    auto inputs = flags_.pipeline_inputs();
    inputs.callback_on_step_end = [&](StepEnd& end) { progress.step_done(end.step + 1, end.num_inference_steps); };
    return pipeline.generate(inputs, {.keep_latents = !flags_.dump_tensors.empty()});
  }

  void write(const FluxPipelineOutput& output, const RunReport& report, const std::string& trace) const {
    WrittenFiles written;
    const auto paths = flags_.picture_paths();
    for (size_t i = 0; i < paths.size(); ++i) {
      output.images.at(i).save(paths[i], picture_text(flags_, dtype_, output, static_cast<int64_t>(i)));
      written.add(paths[i]);
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
  }

  void say_where(const fs::path& path, const FluxPipelineOutput& output) const {
    std::ostringstream seconds;
    seconds << std::fixed << std::setprecision(1)
            << std::chrono::duration<double>(Clock::now() - program_started).count();
    say(text_of("wrote ", path.string(), " (", output.width, "x", output.height, ", ", output.num_inference_steps,
                " steps, seed ", output.seeds.empty() ? 0 : output.seeds.front(), ", ", seconds.str(), " s)"));
  }

  const GenerateFlags& flags_;
  const RankLayout& layout_;
  World& world_;
  std::optional<at::ScalarType> dtype_;
  Trace trace_;
};

int generate(GenerateFlags& flags) {
  flags.verbosity.apply();
  flags.validate();
  const auto env = LaunchEnv::from_environment();
  const auto layout = choose_layout(flags.ranks, env);
  flags.read_prompt_file(layout.ranks);
  FluxPipeline::check_arguments(flags.pipeline_inputs());
  if (layout.parallel) FluxPipeline::check_layout(flags.pipeline_inputs(), *layout.parallel);
  if (!env) {
    // Once here, before anything is started; with another launcher rank 0 does it below.
    flags.check_outputs();
    resolve_model(flags.model);
  }
  if (layout.to_start > 0) return launch_ranks(layout.to_start, own_command_line());
  unsetenv("PARDIFF_NPROC_PER_NODE");  // has been heeded
  return run(
      [&](World& world) {
        if (env && env->launcher != "pardiff" && world.rank() == 0) flags.check_outputs();
        Generation(flags, layout, world).run();
      },
      flags.world_options());
}

}  // namespace

Action declare_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  Flags declared(app);
  flags->declare(declared);
  return [flags] { return generate(*flags); };
}

}  // namespace pardiff::cli
