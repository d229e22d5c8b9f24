#include "plan/layouts.h"

#include <pardiff/attention/mode.h>
#include <pardiff/core/check.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include "pipelines/flux_batch.h"
#include "pipelines/flux_denoise.h"
#include "pipelines/part_loading.h"

namespace pardiff::plan {
namespace {

const std::vector<std::string>& weight_sharing_axes() {
  static const std::vector<std::string> axes = {"dp", "fsdp", "cfg", "ring", "ulysses"};
  return axes;
}

int degree(const ParallelConfig& config, const std::string& axis) {
  if (axis == "dp") return config.dp_degree;
  if (axis == "fsdp") return config.fsdp_degree;
  if (axis == "cfg") return config.cfg_degree;
  if (axis == "tp") return config.tensor_parallel_config ? config.tensor_parallel_config->degree() : 1;
  if (!config.context_parallel_config) return 1;
  return axis == "ring" ? config.context_parallel_config->ring() : config.context_parallel_config->ulysses();
}

ParallelConfig config_of(int dp, int fsdp, int cfg, int ring, int ulysses, int tp) {
  ParallelConfig config{.cfg_degree = cfg, .dp_degree = dp, .fsdp_degree = fsdp};
  if (ring * ulysses > 1) {
    config.context_parallel_config = ContextParallelConfig{.ring_degree = ring, .ulysses_degree = ulysses};
  }
  if (tp > 1) config.tensor_parallel_config = TensorParallelConfig{.tp_degree = tp};
  return config;
}

std::vector<int> divisors(int number) {
  std::vector<int> found;
  for (int i = 1; i <= number; ++i) {
    if (number % i == 0) found.push_back(i);
  }
  return found;
}

// The same inputs as the call's, as far as the checks look at them.
FluxPipelineInputs inputs_of(const Work& work) {
  FluxPipelineInputs inputs{
      .prompt = "any", .true_cfg_scale = work.true_guidance ? 2.0 : 1.0, .num_images_per_prompt = work.pictures};
  if (work.true_guidance) inputs.negative_prompt = "any";
  return inputs;
}

// diffusers refuses these, or has no such axis.
void check_reference_has(const ParallelConfig& config) {
  const bool context = config.context_parallel_config.has_value();
  check<ConfigError>(config.dp_degree * config.fsdp_degree * config.cfg_degree == 1 && config.weight_axes().empty(),
                     "the reference shares out the tokens or the layers' weights of one call, nothing else.");
  check<ConfigError>(!context || !config.tensor_parallel_config,
                     "the reference does not combine context and tensor parallelism.");
  if (!context) return;
  const auto& mode = attention_mode(*config.context_parallel_config);
  check<ConfigError>(!(mode.ring && mode.ulysses && (mode.ring_anything || mode.ulysses_anything)),
                     "the reference has no anything form of unified attention.");
}

}  // namespace

int64_t Work::image_tokens() const {
  const int64_t multiple = 2 * vae.scale_factor();
  return (height / multiple) * (width / multiple);
}

FluxTransformer2DModel blank_transformer(const Work& work) {
  return FluxTransformer2DModel(work.transformer, kPlaceholders);
}

ParallelConfig as_run(const Work& work, const ParallelConfig& config) {
  if (!flux::needs_folding(config, work.pictures)) return config;
  return with_fsdp_in_ring(config, config.mesh(0, config.ranks()));
}

std::string why_refused(const Work& work, FluxTransformer2DModelImpl& blank, const ParallelConfig& config, int ranks,
                        Profile profile) {
  try {
    blank.check_parallelism(config, 0, ranks);
    FluxPipeline::check_layout(inputs_of(work), config);
    const auto run = as_run(work, config);
    if (profile == Profile::kReference) check_reference_has(run);
    if (run.context_parallel_config) {
      const auto& mode = attention_mode(*run.context_parallel_config);
      const int sharing = run.context_parallel_config->ring() * run.context_parallel_config->ulysses();
      flux::check_token_counts(
          {mode.any_length, mode.lifting_flag(), sharing, flux::needs_folding(config, work.pictures)},
          work.image_tokens(), work.text_tokens);
    }
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

std::string why_refused(const Work& work, const ParallelConfig& config, int ranks, Profile profile) {
  return why_refused(work, *blank_transformer(work), config, ranks, profile);
}

std::vector<ParallelConfig> all_layouts(int ranks) {
  std::vector<ParallelConfig> layouts;
  for (const int tp : divisors(ranks)) {
    for (const int ulysses : divisors(ranks / tp)) {
      for (const int ring : divisors(ranks / tp / ulysses)) {
        for (const int cfg : divisors(ranks / tp / ulysses / ring)) {
          if (cfg > 2) break;
          for (const int fsdp : divisors(ranks / tp / ulysses / ring / cfg)) {
            layouts.push_back(config_of(ranks / tp / ulysses / ring / cfg / fsdp, fsdp, cfg, ring, ulysses, tp));
          }
        }
      }
    }
  }
  return layouts;
}

std::optional<ParallelConfig> anything_form(const ParallelConfig& config) {
  if (!config.context_parallel_config) return std::nullopt;
  auto form = config;
  form.context_parallel_config->ring_anything = config.context_parallel_config->ring() > 1;
  form.context_parallel_config->ulysses_anything = config.context_parallel_config->ulysses() > 1;
  return form;
}

std::optional<ParallelConfig> with_sharded_weights(const ParallelConfig& config) {
  auto sharded = config;
  for (const auto& axis : weight_sharing_axes()) {
    if (degree(config, axis) > 1) sharded.shard_weights_over.push_back(axis);
  }
  if (sharded.weight_axes() == config.weight_axes()) return std::nullopt;  // nothing more to share
  return sharded;
}

std::string description(const ParallelConfig& config) {
  std::vector<std::string> parts;
  for (const std::string axis : {"dp", "fsdp", "cfg", "ring", "ulysses", "tp"}) {
    if (degree(config, axis) > 1) parts.push_back(text_of(axis, " ", degree(config, axis)));
  }
  if (parts.empty()) return "one rank";
  auto text = joined(parts, " x ");
  if (config.context_parallel_config) {
    const auto& context = *config.context_parallel_config;
    if (context.ring_anything || context.ulysses_anything) text += ", anything";
    if (context.ring() > 1 && context.rotate_method == "allgather") text += ", allgather";
  }
  const auto axes = config.weight_axes();
  if (!axes.empty()) text += text_of(", weights over ", joined(axes, "+"));
  return text;
}

std::string generate_flags(const ParallelConfig& config) {
  std::vector<std::string> flags;
  for (const std::string axis : {"dp", "fsdp", "cfg", "ring", "ulysses", "tp"}) {
    if (degree(config, axis) > 1) flags.push_back(text_of("--", axis, "-degree ", degree(config, axis)));
  }
  if (config.context_parallel_config) {
    if (config.context_parallel_config->ring_anything) flags.emplace_back("--ring-anything");
    if (config.context_parallel_config->ulysses_anything) flags.emplace_back("--ulysses-anything");
    if (config.context_parallel_config->rotate_method == "allgather") flags.emplace_back("--rotate-method allgather");
  }
  if (!config.shard_weights_over.empty()) {
    flags.push_back(text_of("--shard-weights-over ", joined(config.shard_weights_over, ",")));
  }
  return joined(flags, " ");
}

}  // namespace pardiff::plan
