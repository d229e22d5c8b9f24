#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include "support/failure.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

// A cheap picture.
FluxPipelineInputs small(const Prompts& prompt = "a red circle") {
  return {.prompt = prompt, .height = 32, .width = 48, .num_inference_steps = 2, .seed = 3, .max_sequence_length = 16};
}

class Pipeline : public ::testing::Test {
 protected:
  static FluxPipeline load(const FluxPipelineOptions& options = {.dtype = at::kFloat}) {
    return FluxPipeline::from_pretrained(model_path("flux-shapes"), world(), options);
  }
  static World& world() {
    static World alone({.device = "cpu"});
    return alone;
  }
};

TEST_F(Pipeline, MakesPicturesOfTheSizeAskedForInTheOrderOfThePrompts) {
  auto pipeline = load();
  auto inputs = small({"a red circle", "a blue square"});
  inputs.num_images_per_prompt = 2;
  const auto output = pipeline.generate(inputs);
  ASSERT_EQ(output.images.size(), 4u);
  EXPECT_EQ(output.images[0].height, 32);
  EXPECT_EQ(output.images[0].width, 48);
  EXPECT_EQ(output.image.sizes(), at::IntArrayRef({4, 3, 32, 48}));
  EXPECT_EQ(output.clip_token_ids.sizes(), at::IntArrayRef({2, 77}));
  EXPECT_EQ(output.t5_token_ids.sizes(), at::IntArrayRef({2, 16}));
  EXPECT_EQ(output.step_seconds.size(), 2u);

  // Picture 2 is the first of the second prompt, whose noise is the third row of the batch's.
  auto alone = small("a blue square");
  alone.latents = pipeline.generate(inputs, {.keep_transformer_inputs = true})
                      .transformer_inputs.at("hidden_states")
                      .narrow(0, 2, 1);
  EXPECT_LE(absolute_error(pipeline.generate(alone).image[0], output.image[2]), 1e-5);
}

TEST_F(Pipeline, GivesEqualPicturesForEqualSeedsAlsoWhenItsEncodersWereFreed) {
  auto pipeline = load();
  auto kept = load({.dtype = at::kFloat, .keep_loaded = true});
  const auto first = pipeline(small());
  EXPECT_EQ(pipeline(small()).front().rgb, first.front().rgb);
  EXPECT_EQ(kept(small()).front().rgb, first.front().rgb);
  EXPECT_EQ(kept(small()).front().rgb, first.front().rgb);
  auto other = small();
  other.seed = 4;
  EXPECT_NE(pipeline(other).front().rgb, first.front().rgb);
}

TEST_F(Pipeline, ReportsTheSeedThatItDrew) {
  auto pipeline = load();
  auto inputs = small();
  inputs.seed = {};
  const auto output = pipeline.generate(inputs);
  ASSERT_EQ(output.seeds.size(), 1u);
  inputs.seed = output.seeds.front();
  EXPECT_EQ(pipeline(inputs).front().rgb, output.images.front().rgb);
}

TEST_F(Pipeline, RoundsTheSizeDown) {
  auto pipeline = load();
  auto inputs = small();
  inputs.height = 47;
  inputs.width = 63;
  ::testing::internal::CaptureStderr();
  const auto output = pipeline.generate(inputs);
  expect_mentions(::testing::internal::GetCapturedStderr(), {"47x63 is rounded down to 32x48"});
  EXPECT_EQ(output.images.front().rgb, pipeline(small()).front().rgb);
  inputs.width = 15;
  expect_mentions(refusal<UsageError>([&] { pipeline(inputs); }), {"47x15", "16x16"});
}

TEST_F(Pipeline, WarnsOfWordsThatFindNoRoom) {
  auto pipeline = load();
  auto inputs = small("a red circle on a very blue background that is wide");
  inputs.max_sequence_length = 8;
  ::testing::internal::CaptureStderr();
  pipeline.generate(inputs, {.skip_decode = true});
  expect_mentions(::testing::internal::GetCapturedStderr(), {"T5", "8 tokens", "background that is wide"});
}

TEST_F(Pipeline, WarnsOfANegativePromptWithoutEffect) {
  auto pipeline = load();
  auto inputs = small();
  inputs.negative_prompt = "a square";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(pipeline(inputs).front().rgb, pipeline(small()).front().rgb);
  expect_mentions(::testing::internal::GetCapturedStderr(), {"true_cfg_scale is 1"});
}

TEST_F(Pipeline, TakesEmbeddingsAndLatentsInsteadOfPromptsAndSeeds) {
  auto pipeline = load();
  auto inputs = small();
  inputs.negative_prompt = "a square";
  inputs.true_cfg_scale = 2;
  const auto from_text = pipeline.generate(inputs, {.keep_transformer_inputs = true});
  const auto& given = from_text.transformer_inputs;
  const auto negative = pipeline.generate(small("a square"), {.keep_transformer_inputs = true}).transformer_inputs;
  const auto output = pipeline.generate({.true_cfg_scale = 2,
                                         .height = 32,
                                         .width = 48,
                                         .num_inference_steps = 2,
                                         .latents = given.at("hidden_states"),
                                         .prompt_embeds = given.at("encoder_hidden_states"),
                                         .pooled_prompt_embeds = given.at("pooled_projections"),
                                         .negative_prompt_embeds = negative.at("encoder_hidden_states"),
                                         .negative_pooled_prompt_embeds = negative.at("pooled_projections")});
  EXPECT_EQ(output.images.front().rgb, from_text.images.front().rgb);
  EXPECT_TRUE(output.seeds.empty());
  EXPECT_FALSE(output.clip_token_ids.defined());
}

TEST_F(Pipeline, RefusesTensorsOfTheWrongShape) {
  auto pipeline = load();
  auto inputs = small();
  inputs.latents = at::zeros({1, 16, 4, 6});
  expect_mentions(refusal<UsageError>([&] { pipeline(inputs); }), {"latents (packed)", "1 16 4 6", "1 6 64"});
  const FluxPipelineInputs embeds{.prompt_embeds = at::zeros({1, 4, 7}), .pooled_prompt_embeds = at::zeros({1, 64})};
  expect_mentions(refusal<UsageError>([&] { pipeline(embeds); }), {"prompt_embeds", "1 4 7"});
}

TEST_F(Pipeline, UsesOneSecondOrNegativePromptForTheWholeBatch) {
  auto pipeline = load();
  auto one = small({"a red circle", "a blue square"});
  one.prompt_2 = "a heart";
  one.negative_prompt = "";
  one.true_cfg_scale = 1.5;
  auto two = one;
  two.prompt_2 = {"a heart", "a heart"};
  two.negative_prompt = {"", ""};
  const auto output = pipeline.generate(one);
  EXPECT_TRUE(at::equal(output.image, pipeline.generate(two).image));
  EXPECT_TRUE(at::equal(output.t5_token_ids[0], output.t5_token_ids[1]));
  EXPECT_FALSE(at::equal(output.clip_token_ids[0], output.clip_token_ids[1]));
}

TEST_F(Pipeline, TakesItsStepsFromTheSigmasGiven) {
  auto pipeline = load();
  auto inputs = small();
  inputs.num_inference_steps = 28;
  inputs.sigmas = {1.0, 0.5};
  const auto output = pipeline.generate(inputs);
  EXPECT_EQ(output.num_inference_steps, 2);
  EXPECT_EQ(output.images.front().rgb, pipeline(small()).front().rgb);  // the same two as evenly spaced ones
}

TEST_F(Pipeline, LetsACallbackWatchChangeAndStop) {
  auto pipeline = load();
  auto inputs = small();
  std::vector<double> timesteps;
  inputs.callback_on_step_end = [&](StepEnd& end) {
    EXPECT_EQ(end.num_inference_steps, 2);
    EXPECT_EQ(end.step, static_cast<int64_t>(timesteps.size()));
    timesteps.push_back(end.timestep);
  };
  const auto untouched = pipeline.generate(inputs, {.keep_latents = true});
  ASSERT_EQ(timesteps.size(), 2u);
  EXPECT_EQ(timesteps.front(), 1000.0);

  inputs.callback_on_step_end = [](StepEnd& end) { end.interrupt = true; };
  const auto stopped = pipeline.generate(inputs, {.keep_latents = true});
  ASSERT_EQ(stopped.latents.size(), 1u);
  EXPECT_TRUE(at::equal(stopped.latents[0], untouched.latents[0]));

  inputs.callback_on_step_end = [](StepEnd& end) { end.latents = at::zeros_like(end.latents); };
  EXPECT_EQ(pipeline.generate(inputs, {.keep_latents = true}).latents.back().abs().max().item<float>(), 0.0f);
  inputs.callback_on_step_end = [](StepEnd& end) { end.latents = end.latents.narrow(1, 0, 1); };
  expect_mentions(refusal<ShapeError>([&] { pipeline(inputs); }), {"callback_on_step_end", "latents"});
}

TEST_F(Pipeline, RefusesAPromptThatIsNotUtf8) {
  auto pipeline = load();
  EXPECT_THROW(pipeline(small("a \xff circle")), UsageError);
}

TEST_F(Pipeline, ComputesInTheDtypeOfTheFilesUnlessTold) {
  auto pipeline = load({});
  const auto output = pipeline.generate(small(), {.keep_latents = true});
  EXPECT_EQ(output.latents.back().scalar_type(), at::kBFloat16);
  EXPECT_EQ(output.image.scalar_type(), at::kFloat);
  // Nothing was converted, so nothing had to be copied out of the files.
  EXPECT_GT(output.parameters.total, 1'000'000);
  EXPECT_EQ(output.parameters.private_bytes, 0);
  const auto converted = load().generate(small());
  EXPECT_EQ(converted.parameters.private_bytes, converted.parameters.total);
  EXPECT_EQ(converted.parameters.total, 2 * output.parameters.total);
}

TEST_F(Pipeline, WorksInFloat16) {
  auto pipeline = load({.dtype = at::kHalf});
  EXPECT_TRUE(at::isfinite(pipeline.generate(small()).image).all().item<bool>());
}

TEST_F(Pipeline, RefusesASizeThatNoMemoryHolds) {
  auto pipeline = load();
  auto inputs = small();
  inputs.height = inputs.width = 65536;
  expect_mentions(refusal<ConfigError>([&] { pipeline(inputs); }), {"65536x65536", "GB of memory"});
}

}  // namespace
}  // namespace pardiff::testing
