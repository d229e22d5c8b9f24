#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>

#include <limits>

#include "pipelines/flux_inputs_check.h"

namespace pardiff {
namespace {

std::string refusal(const FluxPipelineInputs& inputs) {
  try {
    flux::check_arguments(inputs);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const FluxPipelineInputs& inputs, const std::string& part) {
  const auto message = refusal(inputs);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Prompts, AreMadeFromOneTextOrSeveral) {
  const auto texts = [](const FluxPipelineInputs& inputs) { return inputs.prompt.texts(); };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts({.prompt = "a"}), Texts({"a"}));
  EXPECT_EQ(texts({.prompt = std::string("a")}), Texts({"a"}));
  EXPECT_EQ(texts({.prompt = {"a", "b"}}), Texts({"a", "b"}));
  EXPECT_EQ(texts({.prompt = Texts{"a", "b", "c"}}), Texts({"a", "b", "c"}));
  EXPECT_EQ(texts({.prompt = {"a"}}), Texts({"a"}));
}

TEST(Prompts, TellAnEmptyTextFromNone) {
  EXPECT_TRUE(Prompts("").given());
  EXPECT_FALSE(Prompts().given());
  EXPECT_FALSE(FluxPipelineInputs{.prompt = {}}.prompt.given());
  EXPECT_THROW(Prompts(static_cast<const char*>(nullptr)), UsageError);
}

TEST(Seeds, KnowAListOfOneFromOneForAll) {
  EXPECT_FALSE(Seeds(3).is_list());
  EXPECT_TRUE(Seeds({3}).is_list());
  EXPECT_FALSE(Seeds().given());
  EXPECT_EQ((FluxPipelineInputs{.seed = {1, 2}}.seed.values()), std::vector<int64_t>({1, 2}));
}

TEST(PipelineArguments, AcceptAnEmptyPrompt) { EXPECT_EQ(refusal({.prompt = ""}), "accepted"); }

TEST(PipelineArguments, RefuseNumbersThatMeanNothing) {
  expect_refused({.prompt = "a", .height = 0}, "height is 0.");
  expect_refused({.prompt = "a", .width = -16}, "width is -16.");
  expect_refused({.prompt = "a", .width = int64_t{1} << 40}, "width is 1099511627776.");
  expect_refused({.prompt = "a", .num_inference_steps = 0}, "num_inference_steps is 0.");
  expect_refused({.prompt = "a", .num_inference_steps = 1'000'000}, "num_inference_steps is 1000000.");
  expect_refused({.prompt = "a", .num_images_per_prompt = 0}, "num_images_per_prompt is 0.");
  expect_refused({.prompt = "a", .seed = -1}, "seed is -1.");
  expect_refused({.prompt = "a", .max_sequence_length = 0}, "max_sequence_length is 0.");
  expect_refused({.prompt = "a", .max_sequence_length = 513}, "max_sequence_length is 513.");
  expect_refused({.prompt = "a", .guidance_scale = std::numeric_limits<double>::quiet_NaN()}, "guidance_scale is nan.");
  expect_refused({.prompt = "a", .true_cfg_scale = std::numeric_limits<double>::infinity()}, "true_cfg_scale is inf.");
  expect_refused({.prompt = "a", .sigmas = {1.0, 0.0}}, "a sigma is 0.");
  expect_refused({.prompt = {"a", "b"}, .num_images_per_prompt = 4000}, "the number of pictures is 8000.");
}

TEST(PipelineArguments, RefuseCountsThatDoNotFit) {
  expect_refused({}, "there is no prompt.");
  expect_refused({.prompt = {"a", "b", "c"}, .prompt_2 = {"a", "b"}}, "there are 2 of prompt_2 for 3 prompts.");
  expect_refused({.prompt = "a", .negative_prompt = {"a", "b"}}, "there are 2 of negative_prompt for 1 prompt.");
  expect_refused({.prompt = "a", .num_images_per_prompt = 3, .seed = {1, 2}}, "there are 2 seeds for 3 pictures.");
}

TEST(PipelineArguments, RefuseTextsThatAreNotUtf8EvenWhereTheyHaveNoEffect) {
  expect_refused({.prompt = "\xff"}, "prompt is not UTF-8: byte 0xff at offset 0 of 1");
  expect_refused({.prompt = "a", .prompt_2 = "b\xc3"}, "prompt_2 is not UTF-8");
  expect_refused({.prompt = "a", .negative_prompt = "\xed\xa0\x80"}, "negative_prompt is not UTF-8");
  expect_refused({.prompt = "a", .negative_prompt_2 = {"ok\x80"}}, "negative_prompt_2 is not UTF-8");
}

TEST(PipelineArguments, RefuseEmbeddingsThatContradictTheTexts) {
  const auto embeds = at::zeros({1, 4, 8}), pooled = at::zeros({1, 8});
  expect_refused({.prompt = "a", .prompt_embeds = embeds, .pooled_prompt_embeds = pooled}, "both prompt (or");
  expect_refused({.prompt_2 = "a", .prompt_embeds = embeds, .pooled_prompt_embeds = pooled}, "both prompt (or");
  expect_refused({.prompt_embeds = embeds}, "only one of prompt_embeds and pooled_prompt_embeds");
  expect_refused({.prompt = "a", .negative_prompt_embeds = embeds}, "only one of negative_prompt_embeds");
  expect_refused({.prompt = "a",
                  .negative_prompt = "b",
                  .negative_prompt_embeds = embeds,
                  .negative_pooled_prompt_embeds = pooled,
                  .max_sequence_length = 4},
                 "both negative_prompt (or");
  expect_refused({.prompt_embeds = pooled, .pooled_prompt_embeds = pooled}, "prompt_embeds has shape [1, 8]");
  expect_refused({.prompt_embeds = at::zeros({1, 0, 8}), .pooled_prompt_embeds = pooled},
                 "prompt_embeds has shape [1, 0, 8]");
  expect_refused({.num_images_per_prompt = 2, .prompt_embeds = embeds, .pooled_prompt_embeds = pooled},
                 "num_images_per_prompt is 2 beside prompt_embeds");
  expect_refused({.prompt = "a", .negative_prompt_embeds = embeds, .negative_pooled_prompt_embeds = pooled},
                 "negative_prompt_embeds has shape [1, 4, 8], and there are 1 pictures with 512 text tokens.");
}

TEST(PipelineArguments, RunTwiceAStepOnlyWithANegativePromptAndAScaleAboveOne) {
  EXPECT_TRUE(flux::uses_true_cfg({.prompt = "a", .negative_prompt = "", .true_cfg_scale = 1.5}));
  EXPECT_FALSE(flux::uses_true_cfg({.prompt = "a", .negative_prompt = "b"}));
  EXPECT_FALSE(flux::uses_true_cfg({.prompt = "a", .true_cfg_scale = 2.0}));
  EXPECT_FALSE(flux::uses_true_cfg({.prompt = "a", .negative_prompt_2 = "b", .true_cfg_scale = 2.0}));
}

TEST(PipelineArguments, RepeatOneTextForTheWholeBatch) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(flux::texts_for("a", "b", 3), Texts({"a", "a", "a"}));
  EXPECT_EQ(flux::texts_for({}, "b", 2), Texts({"b", "b"}));
  EXPECT_EQ(flux::texts_for({"a", "c"}, "b", 2), Texts({"a", "c"}));
}

TEST(PipelineArguments, DifferInTheirDescriptionWhereverTheyDiffer) {
  const FluxPipelineInputs base{.prompt = {"ab", "c"}, .seed = 1};
  const auto differs = [&](const FluxPipelineInputs& other) {
    return flux::description(base) != flux::description(other);
  };
  EXPECT_FALSE(differs({.prompt = {"ab", "c"}, .seed = 1}));
  EXPECT_TRUE(differs({.prompt = {"a", "bc"}, .seed = 1}));
  EXPECT_TRUE(differs({.prompt = {"ab", "c"}}));
  EXPECT_TRUE(differs({.prompt = {"ab", "c"}, .height = 64, .seed = 1}));
  EXPECT_TRUE(differs({.prompt = {"ab", "c"}, .seed = 1, .latents = at::zeros({1})}));
}

}  // namespace
}  // namespace pardiff
