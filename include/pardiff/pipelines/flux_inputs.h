#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace pardiff {

/// One text, several, or none; made from whatever names them: "a", {"a", "b"}, a std::vector<std::string>.
class Prompts {
 public:
  /// None given (which is not the same as an empty text).
  Prompts() = default;
  /// Throws: UsageError for a null pointer.
  Prompts(const char* text);                              // NOLINT(google-explicit-constructor)
  Prompts(std::string text) : texts_{std::move(text)} {}  // NOLINT(google-explicit-constructor)
  Prompts(std::vector<std::string> texts);                // NOLINT(google-explicit-constructor)
  Prompts(std::initializer_list<std::string> texts)       // NOLINT(google-explicit-constructor)
      : Prompts(std::vector<std::string>(texts)) {}

  bool given() const { return !texts_.empty(); }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

/// One seed for the whole batch, one for each picture, or none.
class Seeds {
 public:
  /// None given: one is drawn on rank 0 and sent to all ranks.
  Seeds() = default;
  /// One generator draws the noise of the whole batch.
  Seeds(int64_t seed) : values_{seed} {}                  // NOLINT(google-explicit-constructor)
  Seeds(int seed) : Seeds(static_cast<int64_t>(seed)) {}  // NOLINT(google-explicit-constructor)
  /// A generator for every picture, also when there is only one.
  Seeds(std::vector<int64_t> seeds)
      : values_(std::move(seeds)), is_list_(true) {}  // NOLINT(google-explicit-constructor)
  Seeds(std::initializer_list<int64_t> seeds)
      : values_(seeds), is_list_(true) {}  // NOLINT(google-explicit-constructor)

  bool given() const { return is_list_ || !values_.empty(); }
  bool is_list() const { return is_list_; }
  const std::vector<int64_t>& values() const { return values_; }

 private:
  std::vector<int64_t> values_;
  bool is_list_ = false;
};

/// What a callback sees after every step, and what it may change. Every rank that runs the step calls it; whatever it
/// changes must be changed alike on all of them.
struct StepEnd {
  int64_t step = 0;  // 0 is the first
  int64_t num_inference_steps = 0;
  double timestep = 0;  // of the scheduler: 1000 times sigma
  /// Packed: [B, image_tokens, channels]; this rank's tokens only when the transformer is context parallel, and this
  /// group's pictures only under dp. May be replaced by a tensor of the same shape.
  at::Tensor latents{};
  /// [B, text_tokens, dim], shared like the latents; under cfg those of the own pass. May be replaced by a tensor of
  /// the same shape.
  at::Tensor prompt_embeds{};
  /// The whole of what is shared like the latents: [B, image_tokens, channels], on every rank.
  /// Collective: every rank that runs the step. Cost: an all_gather under context parallelism and one under dp, counted
  /// in communication_total only.
  std::function<at::Tensor(const at::Tensor& share)> gathered{};
  /// True: the remaining steps are left out.
  bool interrupt = false;
};

/// What FluxPipeline makes pictures from: the arguments of diffusers' FluxPipeline.__call__, in its order. `seed`
/// stands for its `generator`.
struct FluxPipelineInputs {
  Prompts prompt{};
  /// For the T5 encoder; default: `prompt`. One text serves a whole batch, here and below.
  Prompts prompt_2{};
  /// What the picture must not show; used if true_cfg_scale is above 1. An empty text counts as given.
  Prompts negative_prompt{};
  /// For the T5 encoder; default: `negative_prompt`.
  Prompts negative_prompt_2{};
  /// Above 1 and with a negative prompt, the transformer runs twice a step.
  double true_cfg_scale = 1.0;
  /// Pixels, rounded down to what the latents allow (16 for FLUX's VAE), with a warning; default: 128 latents (1024).
  std::optional<int64_t> height{};
  std::optional<int64_t> width{};
  int64_t num_inference_steps = 28;
  /// Instead of evenly spaced ones; num_inference_steps then is their number.
  std::vector<double> sigmas{};
  /// Goes into the guidance embedding, if the transformer has one.
  double guidance_scale = 3.5;
  int64_t num_images_per_prompt = 1;
  /// Of torch's CPU generator, from 0.
  Seeds seed{};
  /// Noise to start from instead, already packed: [B, image_tokens, channels].
  at::Tensor latents{};
  /// Instead of prompt and prompt_2: [B, text_tokens, dim], and [B, pooled_dim] of the CLIP encoder. One row per
  /// picture: num_images_per_prompt does not repeat them.
  at::Tensor prompt_embeds{};
  at::Tensor pooled_prompt_embeds{};
  at::Tensor negative_prompt_embeds{};
  at::Tensor negative_pooled_prompt_embeds{};
  std::function<void(StepEnd&)> callback_on_step_end{};
  /// Tokens of the T5 encoder: 1..512.
  int64_t max_sequence_length = 512;
};

}  // namespace pardiff
