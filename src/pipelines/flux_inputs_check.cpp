#include "pipelines/flux_inputs_check.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>

#include <cmath>
#include <utility>

#include "pipelines/sha256.h"
#include "text/unicode_text.h"

namespace pardiff::flux {
namespace {

constexpr int64_t kLongestSide = 1 << 16;  // pixels
constexpr int64_t kMostPictures = 4096;
constexpr int64_t kMostSteps = 10000;
constexpr int64_t kMostT5Tokens = 512;

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
  check<UsageError>(count <= 1 || count == prompts, "there are ", count, " of ", name, " for ", prompts,
                    prompts == 1 ? " prompt" : " prompts", ". Give one, or one for each prompt.");
}

struct Embeddings {
  const char* name;  // of the texts: "prompt"
  const at::Tensor& prompt;
  const at::Tensor& pooled;
  const Prompts& texts;
  const Prompts& texts_2;
};

void check_embeddings(const Embeddings& given) {
  check<UsageError>(given.prompt.defined() == given.pooled.defined(), "only one of ", given.name, "_embeds and pooled_",
                    given.name, "_embeds is given. Give both, made from the same prompt.");
  if (!given.prompt.defined()) return;
  check<UsageError>(!given.texts.given() && !given.texts_2.given(), "both ", given.name, " (or ", given.name,
                    "_2) and ", given.name, "_embeds are given. Give one of them.");
  check<UsageError>(given.prompt.dim() == 3 && given.pooled.dim() == 2 && given.prompt.size(0) > 0 &&
                        given.prompt.size(1) > 0 && given.prompt.size(0) == given.pooled.size(0),
                    given.name, "_embeds has shape ", given.prompt.sizes(), " and its pooled one ",
                    given.pooled.sizes(), ". They are [B, tokens, dim] and [B, dim].");
}

// Also of texts that this call has no use for: they go into the picture's parameters.
void check_utf8(const FluxPipelineInputs& inputs) {
  for (const auto& [name, prompts] : {std::pair{"prompt", &inputs.prompt},
                                      {"prompt_2", &inputs.prompt_2},
                                      {"negative_prompt", &inputs.negative_prompt},
                                      {"negative_prompt_2", &inputs.negative_prompt_2}}) {
    for (const auto& text : prompts->texts()) require_utf8(text, name);
  }
}

void check_texts(const FluxPipelineInputs& inputs) {
  check<UsageError>(inputs.prompt.given() || inputs.prompt_embeds.defined(),
                    "there is no prompt. Give a text (it may be empty) or prompt_embeds.");
  check_embeddings({"prompt", inputs.prompt_embeds, inputs.pooled_prompt_embeds, inputs.prompt, inputs.prompt_2});
  check_embeddings({"negative_prompt", inputs.negative_prompt_embeds, inputs.negative_pooled_prompt_embeds,
                    inputs.negative_prompt, inputs.negative_prompt_2});
  check<UsageError>(!inputs.prompt_embeds.defined() || inputs.num_images_per_prompt == 1, "num_images_per_prompt is ",
                    inputs.num_images_per_prompt,
                    " beside prompt_embeds, whose rows are pictures already. Repeat the rows, and leave it at 1.");
  const int64_t prompts = prompt_count(inputs);
  check_companion("prompt_2", inputs.prompt_2, prompts);
  check_companion("negative_prompt", inputs.negative_prompt, prompts);
  check_companion("negative_prompt_2", inputs.negative_prompt_2, prompts);
  check_utf8(inputs);
}

void check_negative_embeddings(const FluxPipelineInputs& inputs) {
  if (!inputs.negative_prompt_embeds.defined()) return;
  const int64_t tokens = inputs.prompt_embeds.defined() ? inputs.prompt_embeds.size(1) : inputs.max_sequence_length;
  const int64_t pictures = picture_count(inputs);
  check<UsageError>(
      inputs.negative_prompt_embeds.size(0) == pictures && inputs.negative_prompt_embeds.size(1) == tokens,
      "negative_prompt_embeds has shape ", inputs.negative_prompt_embeds.sizes(), ", and there are ", pictures,
      " pictures with ", tokens, " text tokens. Make it [", pictures, ", ", tokens, ", dim].");
}

void check_seeds(const Seeds& seed, int64_t pictures) {
  const auto count = static_cast<int64_t>(seed.values().size());
  check<UsageError>(!seed.is_list() || count == pictures, "there are ", count, " seeds for ", pictures,
                    pictures == 1 ? " picture" : " pictures", ". Give one seed, or one for each picture.");
  for (const auto value : seed.values()) check<UsageError>(value >= 0, "seed is ", value, ". Seeds start at 0.");
}

std::string shape_and_hash(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  return text_of(tensor.sizes(), " ", tensor.scalar_type(), " ", sha256(tensor).substr(0, 16));
}

std::string count_and_hash(const Prompts& prompts) {
  std::string all;
  for (const auto& text : prompts.texts()) all += text_of(text.size(), ":", text);  // no two lists read alike
  return text_of(prompts.texts().size(), " ", sha256(all).substr(0, 16));
}

}  // namespace

void check_arguments(const FluxPipelineInputs& inputs) {
  if (inputs.height) check_range("height", *inputs.height, 1, kLongestSide);
  if (inputs.width) check_range("width", *inputs.width, 1, kLongestSide);
  check_range("num_images_per_prompt", inputs.num_images_per_prompt, 1, kMostPictures);
  check_range("max_sequence_length", inputs.max_sequence_length, 1, kMostT5Tokens);
  check_texts(inputs);
  check_range("the number of pictures", picture_count(inputs), 1, kMostPictures);
  check_negative_embeddings(inputs);
  check_range("num_inference_steps", step_count(inputs), 1, kMostSteps);
  for (const double sigma : inputs.sigmas) {
    check<UsageError>(std::isfinite(sigma) && sigma > 0, "a sigma is ", sigma, ". Give numbers above 0.");
  }
  check_finite("guidance_scale", inputs.guidance_scale);
  check_finite("true_cfg_scale", inputs.true_cfg_scale);
  check_seeds(inputs.seed, picture_count(inputs));
}

int64_t prompt_count(const FluxPipelineInputs& inputs) {
  return inputs.prompt_embeds.defined() ? inputs.prompt_embeds.size(0)
                                        : static_cast<int64_t>(inputs.prompt.texts().size());
}

int64_t picture_count(const FluxPipelineInputs& inputs) { return prompt_count(inputs) * inputs.num_images_per_prompt; }

bool uses_true_cfg(const FluxPipelineInputs& inputs) {
  return inputs.true_cfg_scale > 1 && (inputs.negative_prompt.given() || inputs.negative_prompt_embeds.defined());
}

int64_t step_count(const FluxPipelineInputs& inputs) {
  return inputs.sigmas.empty() ? inputs.num_inference_steps : static_cast<int64_t>(inputs.sigmas.size());
}

std::vector<std::string> texts_for(const Prompts& texts, const Prompts& otherwise, int64_t count) {
  auto all = texts.given() ? texts.texts() : otherwise.texts();
  if (all.size() == 1) all.resize(static_cast<size_t>(count), all.front());
  return all;
}

std::string description(const FluxPipelineInputs& inputs) {
  return text_of("prompt ", count_and_hash(inputs.prompt), ", prompt_2 ", count_and_hash(inputs.prompt_2),
                 ", negative_prompt ", count_and_hash(inputs.negative_prompt), ", negative_prompt_2 ",
                 count_and_hash(inputs.negative_prompt_2), ", true_cfg_scale ", inputs.true_cfg_scale, ", height ",
                 inputs.height.value_or(0), ", width ", inputs.width.value_or(0), ", steps ", step_count(inputs),
                 ", sigmas ", joined(inputs.sigmas, " "), ", guidance_scale ", inputs.guidance_scale,
                 ", images per prompt ", inputs.num_images_per_prompt, ", seed ", joined(inputs.seed.values(), " "),
                 ", latents ", shape_and_hash(inputs.latents), ", prompt_embeds ", shape_and_hash(inputs.prompt_embeds),
                 ", pooled ", shape_and_hash(inputs.pooled_prompt_embeds), ", negative_prompt_embeds ",
                 shape_and_hash(inputs.negative_prompt_embeds), ", pooled ",
                 shape_and_hash(inputs.negative_pooled_prompt_embeds), ", text tokens ", inputs.max_sequence_length);
}

}  // namespace pardiff::flux
