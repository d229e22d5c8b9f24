#include <gtest/gtest.h>
#include <pardiff/pipelines/diffusion_pipeline.h>

#include <algorithm>

#include "parity/pipeline/golden_run.h"
#include "support/golden.h"

namespace pardiff::testing {
namespace {

constexpr double kTolerance = 2e-5;  // or twice what rounding makes of a case

class GoldenCase : public ::testing::TestWithParam<const char*> {};

FluxPipelineOutput run_alone(const FluxPipelineInputs& inputs) {
  World world({.device = "cpu"});
  auto pipeline = DiffusionPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat});
  return pipeline.generate(inputs, {.keep_latents = true, .keep_transformer_inputs = true});
}

TEST_P(GoldenCase, MatchesTheReferenceFromTheFirstInputsToThePicture) {
  const GoldenRun golden(GetParam());
  const auto output = run_alone(golden.inputs());

  const auto expected_inputs = golden.transformer_inputs();
  ASSERT_EQ(output.transformer_inputs.size(), expected_inputs.size());
  for (const auto& [name, expected] : expected_inputs) {
    EXPECT_LE(absolute_error(output.transformer_inputs.at(name), expected), kTolerance) << name;
  }
  ASSERT_EQ(static_cast<int64_t>(output.latents.size()), golden.inputs().num_inference_steps);
  const auto& reach = rounding_reach(GetParam());
  for (size_t step = 0; step < output.latents.size(); ++step) {
    const auto expected = golden.latents(static_cast<int64_t>(step));
    EXPECT_LE(absolute_error(output.latents[step], expected), std::max(kTolerance, 2 * reach.latents[step]))
        << "latents of step " << step;
  }
  const double error = absolute_error(output.image, golden.image());
  EXPECT_LE(error, std::max(kTolerance, 2 * reach.image));
  RecordProperty("rounding_reach", std::to_string(reach.image));
  RecordProperty("image_error", std::to_string(error));
}

TEST_P(GoldenCase, GivesTheReferencesNoiseToTheBit) {
  const GoldenRun golden(GetParam());
  const auto output = run_alone(golden.inputs());
  EXPECT_EQ(
      absolute_error(output.transformer_inputs.at("hidden_states"), golden.transformer_inputs().at("hidden_states")),
      0.0);
  EXPECT_EQ(absolute_error(output.transformer_inputs.at("timestep"), golden.transformer_inputs().at("timestep")), 0.0);
  EXPECT_EQ(absolute_error(output.transformer_inputs.at("img_ids"), golden.transformer_inputs().at("img_ids")), 0.0);
}

INSTANTIATE_TEST_SUITE_P(Reference, GoldenCase, ::testing::Values("square", "wide", "odd_tokens", "batch", "true_cfg"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace pardiff::testing
