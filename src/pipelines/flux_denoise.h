#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/pipelines/flux_inputs.h>
#include <pardiff/pipelines/flux_output.h>
#include <pardiff/schedulers/flow_match_euler.h>

#include <functional>

#include "pipelines/flux_condition.h"

namespace pardiff::flux {

/// What the denoising loop works on; everything whole and equal on all ranks.
struct Denoising {
  FluxTransformer2DModel transformer{nullptr};
  const FlowMatchEulerDiscreteScheduler* scheduler = nullptr;
  at::Tensor latents{};  // [B, image tokens, channels]
  at::Tensor img_ids{};  // [image tokens, 3]
  at::Tensor txt_ids{};  // [text tokens, 3]
  Condition condition{};
  Condition negative{};  // not given without true guidance
  double true_cfg_scale = 1.0;
  double guidance_scale = 3.5;
  std::function<void(StepEnd&)> callback_on_step_end{};
  bool keep_latents = false;
  bool keep_transformer_inputs = false;
};

/// Throws: ConfigError if plain Ulysses cannot cut the heads; it names the flag that lifts the rule.
void check_heads(int64_t heads, const ParallelConfig& config);
/// Throws: ConfigError if a plain mode cannot cut the heads or the tokens; it names the tensor, its size, the degree
/// and the flag that lifts the rule.
void check_shares(FluxTransformer2DModelImpl& transformer, int64_t image_tokens, int64_t text_tokens);

/// Runs all steps and returns the whole latents; fills step_seconds, latents, transformer_inputs and communication of
/// `output`. Tokens are split once before the first step and gathered once after the last.
/// Collective: every rank of the transformer's groups.
at::Tensor denoise(const Denoising& work, World& world, FluxPipelineOutput& output);

}  // namespace pardiff::flux
