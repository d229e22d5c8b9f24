#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include "parity/pipeline/golden_run.h"
#include "support/golden.h"

namespace pardiff::testing {
namespace {

constexpr double kTolerance = 1e-5;

FluxTransformerConfig transformer_config() {
  return FluxTransformerConfig::from_file(ConfigFile::open(model_path("flux-shapes/transformer/config.json")));
}

FluxPipelineOutput run_alone(const FluxPipelineInputs& inputs) {
  World world({.device = "cpu"});
  return FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat}).generate(inputs);
}

const at::Tensor& image_of_one_rank(const std::string& name) {
  static std::map<std::string, at::Tensor> images;
  if (!images.count(name)) images[name] = run_alone(GoldenRun(name).inputs()).image;
  return images.at(name);
}

// What every rank, a thread of this process, ends with.
std::vector<FluxPipelineOutput> run_together(const ContextParallelConfig& config, const FluxPipelineInputs& inputs,
                                             const GenerateOptions& options = {}) {
  const int ranks = config.ring() * config.ulysses();
  std::vector<FluxPipelineOutput> outputs(static_cast<size_t>(ranks));
  run_as_threads(ranks,
                 [&](World& world) {
                   auto pipeline = FluxPipeline::from_pretrained(model_path("flux-shapes"), world,
                                                                 {.dtype = at::kFloat, .parallel_config = config});
                   outputs[static_cast<size_t>(world.rank())] = pipeline.generate(inputs, options);
                 },
                 {.device = "cpu"});
  return outputs;
}

struct Case {
  const char* golden;
  ContextParallelConfig config;
};

std::string name_of(const Case& one) {
  return text_of(one.golden, "_ring", one.config.ring(), "_ulysses", one.config.ulysses(), "_",
                 one.config.rotate_method, one.config.ring_anything || one.config.ulysses_anything ? "_anything" : "");
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* golden : {"square", "wide", "batch", "true_cfg"}) {
    for (const int degree : {2, 4}) all.push_back({golden, {.ulysses_degree = degree}});
    for (const char* rotate : {"alltoall", "allgather"}) {
      for (const int degree : {2, 4}) all.push_back({golden, {.ring_degree = degree, .rotate_method = rotate}});
    }
    all.push_back({golden, {.ring_degree = 2, .ulysses_degree = 2}});
  }
  for (const char* rotate : {"alltoall", "allgather"}) {
    all.push_back({"wide", {.ring_degree = 3, .rotate_method = rotate}});
    for (const int degree : {2, 3, 4}) {
      all.push_back({"odd_tokens", {.ring_degree = degree, .rotate_method = rotate, .ring_anything = true}});
    }
  }
  for (const int degree : {2, 3, 4}) {
    all.push_back({"odd_tokens", {.ulysses_degree = degree, .ulysses_anything = true}});
  }
  all.push_back({"odd_tokens", {.ring_degree = 2, .ulysses_degree = 2, .ulysses_anything = true}});
  return all;
}

class SharedTokens : public ::testing::TestWithParam<Case> {};

TEST_P(SharedTokens, GiveThePictureOfOneRank) {
  const auto outputs = run_together(GetParam().config, GoldenRun(GetParam().golden).inputs());
  const double error = absolute_error(outputs[0].image, image_of_one_rank(GetParam().golden));
  EXPECT_LE(error, picture_tolerance(GetParam().golden));
  for (const auto& output : outputs) {
    EXPECT_EQ(output.latents_sha256, outputs[0].latents_sha256);
    EXPECT_EQ(output.images.empty(), &output != &outputs[0]);  // rank 0 has the pictures, and it alone
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SharedTokens, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return name_of(tested.param); });

// Of what every rank gets of the others before the first step: its texts encoded, and all steps' modulations.
int64_t bytes_before_the_steps(const FluxPipelineInputs& inputs, int64_t passes) {
  const auto config = transformer_config();
  const int64_t texts = inputs.negative_prompt.given() ? 2 : 1;
  const int64_t chunks = 12 * config.num_layers + 3 * config.num_single_layers + 2;
  const int64_t encoded = inputs.max_sequence_length * config.joint_attention_dim + config.pooled_projection_dim;
  return (texts * encoded + passes * chunks * config.inner_dim()) * static_cast<int64_t>(sizeof(float));
}

// Equal shares and unequal ones, one pass a step and the two of true guidance: several steps each.
TEST(SeveralRanks, ExchangeTwicePerAttentionUnderUlyssesAndGatherOnceAtTheEnd) {
  const auto config = transformer_config();
  const std::pair<const char*, int> cases[] = {{"square", 2}, {"true_cfg", 4}, {"odd_tokens", 2}, {"odd_tokens", 3}};
  for (const auto& [name, ranks] : cases) {
    const GoldenRun golden(name);
    const auto& inputs = golden.inputs();
    ASSERT_GT(inputs.num_inference_steps, 1);
    const int64_t passes = inputs.num_inference_steps * (inputs.negative_prompt.given() ? 2 : 1);
    const int64_t attentions = (config.num_layers + config.num_single_layers) * passes;
    int64_t gathered = 0;
    const ContextParallelConfig ulysses{.ulysses_degree = ranks, .ulysses_anything = true};
    for (const auto& output : run_together(ulysses, inputs, {.skip_decode = true})) {
      EXPECT_EQ(output.communication.size(), 1u) << name;
      EXPECT_EQ(output.communication.at("all_to_all").calls, 2 * attentions) << name;
      EXPECT_EQ(output.communication_total.size(), 2u) << name;
      EXPECT_EQ(output.communication_total.at("all_to_all").calls, 2 * attentions) << name;
      // Two encoders, the modulations, the latents at the end.
      EXPECT_EQ(output.communication_total.at("all_gather").calls, 4) << name;
      gathered += output.communication_total.at("all_gather").bytes_sent;
    }
    const int64_t latents = golden.latents(0).numel() * static_cast<int64_t>(sizeof(float));
    // Every rank sends its share to all others.
    EXPECT_EQ(gathered, (ranks - 1) * (latents + bytes_before_the_steps(inputs, passes))) << name;
  }
}

TEST(SeveralRanks, KeepEveryStepsLatentsWithoutCountingThemToTheLoop) {
  const GoldenRun golden("wide");
  const auto outputs = run_together({.ring_degree = 3}, golden.inputs(), {.keep_latents = true, .skip_decode = true});
  for (const auto& output : outputs) {
    ASSERT_EQ(static_cast<int64_t>(output.latents.size()), golden.inputs().num_inference_steps);
    for (size_t step = 0; step < output.latents.size(); ++step) {
      EXPECT_LE(absolute_error(output.latents[step], golden.latents(static_cast<int64_t>(step))), 2e-5);
    }
    EXPECT_EQ(output.communication.count("all_gather"), 0u);
    EXPECT_EQ(output.communication_total.at("all_gather").calls, golden.inputs().num_inference_steps + 4);
  }
}

TEST(SeveralRanks, HoldAtMostTwoRemoteBlocksInARotatingRing) {
  const GoldenRun golden("square");
  const int64_t tokens = golden.latents(0).size(1) + golden.inputs().max_sequence_length;
  const int64_t block = 2 * tokens / 4 * transformer_config().inner_dim() * static_cast<int64_t>(sizeof(float));
  for (const auto& output : run_together({.ring_degree = 4}, golden.inputs())) {
    EXPECT_GT(output.peak_remote_kv_bytes, 0);
    EXPECT_LE(output.peak_remote_kv_bytes, 2 * block);
  }
}

TEST(SeveralRanks, MakeTheWholePictureEachWithoutParallelism) {
  const GoldenRun golden("true_cfg");
  std::vector<FluxPipelineOutput> outputs(2);
  run_as_threads(2,
                 [&](World& world) {
                   auto pipeline =
                       FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat});
                   outputs[static_cast<size_t>(world.rank())] = pipeline.generate(golden.inputs());
                 },
                 {.device = "cpu"});
  // Denoising is one rank's to the bit; the decoder's convolutions and norms are shared out by rows.
  EXPECT_LE(absolute_error(outputs[0].image, image_of_one_rank("true_cfg")), 1e-6);
  EXPECT_TRUE(outputs[1].communication_total.empty());
}

TEST(SeveralRanks, GiveTheSamePictureWhenParallelismComesAfterLoadingAndGoesAgain) {
  const GoldenRun golden("square");
  std::vector<FluxPipelineOutput> together(2), apart(2);
  run_as_threads(2,
                 [&](World& world) {
                   auto pipeline =
                       FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat});
                   pipeline.transformer()->enable_parallelism(ContextParallelConfig{.ulysses_degree = 2}, world);
                   together[static_cast<size_t>(world.rank())] = pipeline.generate(golden.inputs());
                   pipeline.transformer()->disable_parallelism();
                   apart[static_cast<size_t>(world.rank())] = pipeline.generate(golden.inputs());
                 },
                 {.device = "cpu"});
  EXPECT_FALSE(together[0].communication.empty());
  EXPECT_TRUE(apart[0].communication_total.empty());
  EXPECT_LE(absolute_error(together[0].image, image_of_one_rank("square")), picture_tolerance("square"));
  EXPECT_EQ(absolute_error(apart[0].image, image_of_one_rank("square")), 0.0);
}

TEST(SeveralRanks, RefuseTokensThatAPlainModeCannotCutAndNameTheFlag) {
  const auto message = [](const ContextParallelConfig& config, const FluxPipelineInputs& inputs) {
    try {
      run_together(config, inputs);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  };
  auto inputs = GoldenRun("odd_tokens").inputs();
  const auto picture = message({.ring_degree = 2}, inputs);
  EXPECT_NE(picture.find("hidden_states (the picture): 63 tokens"), std::string::npos) << picture;
  EXPECT_NE(picture.find("--ring-anything"), std::string::npos) << picture;
  inputs.height = inputs.width = 128;
  const auto prompt = message({.ulysses_degree = 2}, inputs);
  EXPECT_NE(prompt.find("encoder_hidden_states (the prompt): 37 tokens"), std::string::npos) << prompt;
  EXPECT_NE(prompt.find("--ulysses-anything"), std::string::npos) << prompt;
  const auto heads = message({.ulysses_degree = 3}, inputs);
  EXPECT_NE(heads.find(" attention heads cannot be dealt equally to ulysses_degree 3"), std::string::npos) << heads;
  EXPECT_NE(heads.find("--ulysses-anything"), std::string::npos) << heads;
}

TEST(SeveralRanks, NoticeDifferentInputsBeforeTheFirstStep) {
  const auto run_with_other_steps = [] {
    run_as_threads(2,
                   [](World& world) {
                     auto inputs = GoldenRun("true_cfg").inputs();
                     inputs.num_inference_steps += world.rank();
                     FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {}).generate(inputs);
                   },
                   {.device = "cpu"});
  };
  EXPECT_THROW(run_with_other_steps(), CommError);
}

TEST(SeveralRanks, StartFromOneDrawnSeed) {
  auto inputs = GoldenRun("true_cfg").inputs();
  inputs.seed = {};
  const auto outputs = run_together({.ulysses_degree = 2}, inputs);
  ASSERT_EQ(outputs[0].seeds.size(), 1u);
  EXPECT_EQ(outputs[0].seeds, outputs[1].seeds);
  inputs.seed = outputs[0].seeds.front();
  EXPECT_LE(absolute_error(outputs[0].image, run_alone(inputs).image), kTolerance);
}

}  // namespace
}  // namespace pardiff::testing
