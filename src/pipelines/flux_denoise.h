#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/pipelines/flux_inputs.h>
#include <pardiff/pipelines/flux_output.h>
#include <pardiff/schedulers/flow_match_euler.h>

#include <functional>
#include <string>

#include "pipelines/flux_batch.h"
#include "pipelines/flux_condition.h"

namespace pardiff::flux {

/// What the denoising loop works on. Tokens are whole.
struct Denoising {
  FluxTransformer2DModel transformer{nullptr};
  const BatchShare* batch = nullptr;
  const FlowMatchEulerDiscreteScheduler* scheduler = nullptr;
  at::Tensor latents{};  // [B, image tokens, channels]; the whole batch, equal on all ranks
  at::Tensor img_ids{};  // [image tokens, 3]
  at::Tensor txt_ids{};  // [text tokens, 3]
  /// Of this group's pictures. Where the ranks of a group share out the passes of true guidance, that of the own pass.
  Condition condition{};
  Condition negative{};  // given if this rank runs both passes
  /// Of all steps, see `conditions_of_steps`; where they are not given, each step computes its own.
  FluxModulations modulations{};
  double true_cfg_scale = 1.0;
  double guidance_scale = 3.5;
  std::function<void(StepEnd&)> callback_on_step_end{};
  bool keep_latents = false;
  bool keep_transformer_inputs = false;
};

/// Throws: ConfigError if a plain mode cannot cut the tokens; it names the tensor, its size, the degree and the flag
/// that lifts the rule. (The heads were checked when the transformer became parallel.)
void check_shares(FluxTransformer2DModelImpl& transformer, int64_t image_tokens, int64_t text_tokens);

/// How many tokens a mode can cut.
struct TokenRule {
  bool any_length = true;
  std::string lifting_flag{};
  int ranks = 1;             // that share the tokens
  bool fsdp_folded = false;  // into ring: its ranks are among them
};
/// The same for ranks that need not exist. Pure.
void check_token_counts(const TokenRule& rule, int64_t image_tokens, int64_t text_tokens);

/// What the modulations of the whole job are computed from: for each step the rows of the positive pass, then those of
/// the negative one if this rank runs both. Only pooled_projections, timestep and guidance are given.
FluxTransformerInputs conditions_of_steps(const Denoising& work);

/// Runs all steps and returns the latents of this group's pictures, their tokens whole; fills step_seconds, latents,
/// transformer_inputs and communication of `output`. Tokens are split once before the first step and gathered once
/// after the last. Collective: every rank of the world, if the transformer is parallel.
at::Tensor denoise(const Denoising& work, World& world, FluxPipelineOutput& output);

}  // namespace pardiff::flux
