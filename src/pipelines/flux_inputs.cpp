#include <pardiff/core/check.h>

#include <cmath>

#include "pipelines/flux_inputs_check.h"

namespace pardiff {

Prompts::Prompts(const char* text) {
  check<UsageError>(text != nullptr, "a prompt is a null pointer. Give a text, or leave it out.");
  texts_.emplace_back(text);
}

Prompts::Prompts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

namespace flux {
namespace {

constexpr int64_t kLongestSide = 1 << 16;  // pixels
constexpr int64_t kMostPictures = 4096;
constexpr int64_t kMostSteps = 10000;

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  check<UsageError>(value >= least && value <= most, name, " is ", value, ". Give a number from ", least, " to ", most,
                    ".");
}

void check_finite(const char* name, double value) {
  check<UsageError>(std::isfinite(value), name, " is ", value, ". Give a finite number.");
}

// A second or negative text serves the whole batch when there is one of it.
void check_companion(const char* name, const Prompts& texts, int64_t prompts) {
  const auto count = static_cast<int64_t>(texts.texts().size());
  check<UsageError>(count <= 1 || count == prompts, "there are ", prompts, " prompts and ", count, " of ", name,
                    ". Give one, or one for each prompt.");
}

void check_embeddings(const char* name, const at::Tensor& embeds, const at::Tensor& pooled, const Prompts& texts) {
  check<UsageError>(!(embeds.defined() && texts.given()), name,
                    " is given both as text and as embeddings. Give one of them.");
  check<UsageError>(embeds.defined() == pooled.defined(), name,
                    "_embeds and pooled embeddings belong together: only one of them is given. Give both.");
  if (!embeds.defined()) return;
  check<UsageError>(embeds.dim() == 3 && pooled.dim() == 2 && embeds.size(0) == pooled.size(0), name,
                    "_embeds has shape ", embeds.sizes(), " and the pooled ones ", pooled.sizes(),
                    ". They are [B, tokens, dim] and [B, dim].");
}

}  // namespace

int64_t picture_count(const FluxPipelineInputs& inputs) {
  if (inputs.prompt_embeds.defined()) return inputs.prompt_embeds.size(0);
  return static_cast<int64_t>(inputs.prompt.texts().size()) * inputs.num_images_per_prompt;
}

bool uses_true_cfg(const FluxPipelineInputs& inputs) {
  return inputs.true_cfg_scale > 1 && (inputs.negative_prompt.given() || inputs.negative_prompt_embeds.defined());
}

void check_arguments(const FluxPipelineInputs& inputs) {
  check<UsageError>(inputs.prompt.given() || inputs.prompt_embeds.defined(),
                    "there is no prompt. Give a text (it may be empty) or prompt_embeds.");
  check_embeddings("prompt", inputs.prompt_embeds, inputs.pooled_prompt_embeds, inputs.prompt);
  check_embeddings("negative_prompt", inputs.negative_prompt_embeds, inputs.negative_pooled_prompt_embeds,
                   inputs.negative_prompt);
  const auto prompts = static_cast<int64_t>(inputs.prompt.texts().size());
  check_companion("prompt_2", inputs.prompt_2, prompts);
  check_companion("negative_prompt", inputs.negative_prompt, prompts);
  check_companion("negative_prompt_2", inputs.negative_prompt_2, prompts);
  if (inputs.height) check_range("height", *inputs.height, 1, kLongestSide);
  if (inputs.width) check_range("width", *inputs.width, 1, kLongestSide);
  check_range("num_inference_steps", inputs.num_inference_steps, 1, kMostSteps);
  check_range("num_images_per_prompt", inputs.num_images_per_prompt, 1, kMostPictures);
  check_range("the number of pictures", picture_count(inputs), 1, kMostPictures);
  check_range("max_sequence_length", inputs.max_sequence_length, 1, 512);
  check_finite("guidance_scale", inputs.guidance_scale);
  check_finite("true_cfg_scale", inputs.true_cfg_scale);
  check<UsageError>(
      !inputs.seed.is_list() || static_cast<int64_t>(inputs.seed.values().size()) == picture_count(inputs),
      "there are ", inputs.seed.values().size(), " seeds and ", picture_count(inputs),
      " pictures. Give one seed, or one for each picture.");
  for (const auto seed : inputs.seed.values()) check<UsageError>(seed >= 0, "seed is ", seed, ". Seeds start at 0.");
}

}  // namespace flux
}  // namespace pardiff
