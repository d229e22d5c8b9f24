// Ranks that share a batch's pictures (dp) or the two passes of true guidance (cfg).
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include "parity/pipeline/golden_run.h"
#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"

namespace pardiff::testing {
namespace {

constexpr double kTolerance = 1e-5;

// A cheap call of `prompts` different prompts.
FluxPipelineInputs small(int64_t prompts) {
  const std::vector<std::string> texts = {"a red circle", "a blue square", "a green heart"};
  return {.prompt = std::vector<std::string>(texts.begin(), texts.begin() + prompts),
          .height = 32,
          .width = 64,
          .num_inference_steps = 2,
          .seed = 5,
          .max_sequence_length = 16};
}

FluxPipelineInputs guided(int64_t prompts) {
  auto inputs = small(prompts);
  inputs.negative_prompt = "a square";
  inputs.true_cfg_scale = 2;
  return inputs;
}

std::vector<FluxPipelineOutput> run_together(const ParallelConfig& config, const FluxPipelineInputs& inputs,
                                             const GenerateOptions& options = {}) {
  std::vector<FluxPipelineOutput> outputs(static_cast<size_t>(config.ranks()));
  on_threads(config.ranks(), [&](World& world) {
    auto pipeline = FluxPipeline::from_pretrained(model_path("flux-shapes"), world,
                                                  {.dtype = at::kFloat, .parallel_config = config});
    outputs[static_cast<size_t>(world.rank())] = pipeline.generate(inputs, options);
  });
  return outputs;
}

FluxPipelineOutput run_alone(const FluxPipelineInputs& inputs, const GenerateOptions& options = {}) {
  World world({.device = "cpu"});
  return FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat})
      .generate(inputs, options);
}

int64_t all_gathers(const FluxPipelineOutput& output) {
  const auto found = output.communication.find("all_gather");
  return found == output.communication.end() ? 0 : found->second.calls;
}

TEST(DataParallel, DealsPicturesUnevenlyAndPutsThemInOrder) {
  for (const int64_t copies : {1, 2}) {
    auto inputs = small(copies == 1 ? 3 : 2);
    if (copies == 2) inputs.num_images_per_prompt = 2;  // three groups of 2, 1 and 1: one starts within a prompt
    const ParallelConfig config{.dp_degree = copies == 1 ? 2 : 3};
    const auto outputs = run_together(config, inputs, {.keep_latents = true, .keep_transformer_inputs = true});
    const auto alone = run_alone(inputs, {.keep_latents = true, .keep_transformer_inputs = true});
    ASSERT_EQ(outputs[0].images.size(), alone.images.size());
    EXPECT_LE(absolute_error(outputs[0].image, alone.image), kTolerance);
    for (const auto& output : outputs) {
      EXPECT_EQ(output.images.empty(), &output != &outputs[0]);
      EXPECT_EQ(output.latents_sha256, alone.latents_sha256);
      EXPECT_EQ(all_gathers(output), 0);  // groups of pictures have nothing to tell one another in the loop
      ASSERT_EQ(output.latents.size(), alone.latents.size());
      EXPECT_LE(absolute_error(output.latents.back(), alone.latents.back()), kTolerance);
      EXPECT_TRUE(at::equal(output.clip_token_ids, alone.clip_token_ids));
      ASSERT_EQ(output.transformer_inputs.size(), alone.transformer_inputs.size());
      for (const auto& [name, expected] : alone.transformer_inputs) {
        EXPECT_LE(absolute_error(output.transformer_inputs.at(name), expected), kTolerance) << name;
      }
    }
  }
}

TEST(DataParallel, TakesEveryGroupsRowsOfEmbeddingsAndLatents) {
  const auto from_text = run_alone(guided(2), {.keep_transformer_inputs = true}).transformer_inputs;
  auto inputs = guided(2);
  inputs.prompt = inputs.negative_prompt = {};
  inputs.latents = from_text.at("hidden_states");
  inputs.prompt_embeds = from_text.at("encoder_hidden_states");
  inputs.pooled_prompt_embeds = from_text.at("pooled_projections");
  inputs.negative_prompt_embeds = from_text.at("encoder_hidden_states").flip(0);
  inputs.negative_pooled_prompt_embeds = from_text.at("pooled_projections").flip(0);
  const auto alone = run_alone(inputs);
  for (const auto& config : {ParallelConfig{.dp_degree = 2}, ParallelConfig{.cfg_degree = 2},
                             ParallelConfig{.cfg_degree = 2, .dp_degree = 2}}) {
    EXPECT_LE(absolute_error(run_together(config, inputs)[0].image, alone.image), kTolerance) << config.ranks();
  }
}

TEST(SharedGuidance, ExchangesOnePredictionAStep) {
  const auto inputs = guided(1);
  const auto alone = run_alone(inputs, {.keep_latents = true});
  const int64_t prediction = alone.latents[0].numel() * static_cast<int64_t>(sizeof(float));
  for (const auto& output : run_together({.cfg_degree = 2}, inputs, {.keep_latents = true})) {
    EXPECT_EQ(output.communication.size(), 1u);
    EXPECT_EQ(all_gathers(output), inputs.num_inference_steps);
    EXPECT_EQ(output.communication.at("all_gather").bytes_sent, prediction * inputs.num_inference_steps);
    EXPECT_LE(absolute_error(output.latents.back(), alone.latents.back()), kTolerance);
  }
}

TEST(SharedGuidance, WorksWithEveryOtherAxis) {
  const ParallelConfig config{.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2},
                              .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2},
                              .cfg_degree = 2,
                              .dp_degree = 2};
  const auto inputs = guided(3);
  EXPECT_LE(absolute_error(run_together(config, inputs)[0].image, run_alone(inputs).image), kTolerance);
}

TEST(SharedGuidance, IsRefusedWithoutTrueGuidance) {
  auto inputs = guided(1);
  inputs.true_cfg_scale = 1;
  const auto message = refusal<ConfigError>([&] { run_together({.cfg_degree = 2}, inputs); });
  expect_mentions(message, {"cfg_degree is 2", "--negative-prompt", "--true-cfg-scale", "--cfg-degree"});
  expect_mentions(refusal<ConfigError>([] { run_together({.cfg_degree = 2}, small(1)); }), {"true guidance is off"});
}

TEST(DataParallel, IsRefusedForFewerPicturesThanGroups) {
  const auto message = refusal<ConfigError>([] { run_together({.dp_degree = 3}, small(2)); });
  expect_mentions(message, {"dp_degree is 3", "2 pictures", "--ulysses-degree"});
  expect_mentions(refusal<ConfigError>([] { FluxPipeline::check_layout(small(1), {.dp_degree = 2}); }), {"1 picture "});
}

}  // namespace
}  // namespace pardiff::testing
