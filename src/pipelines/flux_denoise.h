#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/pipelines/flux_inputs.h>
#include <pardiff/pipelines/flux_output.h>
#include <pardiff/schedulers/flow_match_euler.h>

#include <functional>

namespace pardiff::flux {

/// The text side of one pass.
struct Condition {
  at::Tensor prompt_embeds;  // [B, text tokens, dim]
  at::Tensor pooled;         // [B, pooled_dim]
};

/// What the denoising loop works on; everything whole and equal on all ranks.
struct Denoising {
  FluxTransformer2DModel transformer{nullptr};
  const FlowMatchEulerDiscreteScheduler* scheduler = nullptr;
  at::Tensor latents;  // [B, image tokens, channels]
  at::Tensor img_ids, txt_ids;
  Condition condition;
  Condition negative;  // undefined without true guidance
  double true_cfg_scale = 1.0;
  double guidance_scale = 3.5;
  std::function<void(StepEnd&)> callback_on_step_end;
  bool keep_latents = false;
  bool keep_transformer_inputs = false;
};

/// Throws ConfigError if a plain mode cannot cut the tokens; it names the tensor, its size, the degree and the flag
/// that lifts the rule.
void check_lengths(torch::nn::Module& transformer, int64_t image_tokens, int64_t text_tokens);

/// Runs all steps and returns the whole latents; fills step_seconds, latents, transformer_inputs and communication of
/// `output`. Tokens are split once before the first step and gathered once after the last.
/// Collective: every rank of the transformer's groups.
at::Tensor denoise(const Denoising& work, World& world, FluxPipelineOutput& output);

}  // namespace pardiff::flux
