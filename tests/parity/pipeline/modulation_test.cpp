// The modulations of all steps are computed before the first one, and the weights for that are given back.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/models/apply.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"

namespace pardiff::testing {
namespace {

FluxPipelineInputs small(const Prompts& prompt = "a red circle") {
  return {.prompt = prompt, .height = 32, .width = 48, .num_inference_steps = 3, .seed = 3, .max_sequence_length = 16};
}

FluxPipelineInputs guided() {
  auto inputs = small({"a red circle", "a blue square"});
  inputs.negative_prompt = "a heart";
  inputs.true_cfg_scale = 2;
  return inputs;
}

FluxPipeline load(World& world, const FluxPipelineOptions& options) {
  return FluxPipeline::from_pretrained(model_path("flux-shapes"), world, options);
}

bool is_of_modulation(const std::string& name) {
  for (const char* part :
       {"time_text_embed.", ".norm1.linear.", ".norm1_context.linear.", ".norm.linear.", "norm_out."}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

bool is_there(const at::Tensor& parameter) { return parameter.storage().nbytes() >= parameter.nbytes(); }

struct Bytes {
  int64_t modulation = 0, rest = 0;
};

// Of the parameters that are in memory.
Bytes bytes_of(const FluxTransformer2DModel& transformer) {
  Bytes bytes;
  for (const auto& parameter : transformer->named_parameters()) {
    if (!is_there(parameter.value())) continue;
    (is_of_modulation(parameter.key()) ? bytes.modulation : bytes.rest) +=
        static_cast<int64_t>(parameter.value().nbytes());
  }
  return bytes;
}

// The latents after every step when each step computes its own modulations, from what the first one was given.
std::vector<at::Tensor> step_by_step(FluxPipeline& pipeline, const FluxPipelineOutput& output) {
  const at::NoGradGuard no_grad;
  auto transformer = pipeline.transformer();
  const auto& given = output.transformer_inputs;
  FluxTransformerInputs inputs{.hidden_states = given.at("hidden_states"),
                               .encoder_hidden_states = given.at("encoder_hidden_states"),
                               .pooled_projections = given.at("pooled_projections"),
                               .img_ids = given.at("img_ids"),
                               .txt_ids = given.at("txt_ids"),
                               .guidance = given.contains("guidance") ? given.at("guidance") : at::Tensor()};
  const auto timesteps = pipeline.scheduler().timesteps();
  std::vector<at::Tensor> latents;
  for (int64_t step = 0; step < timesteps.size(0); ++step) {
    const auto& x = inputs.hidden_states;
    inputs.timestep = timesteps[step].expand({x.size(0)}).to(x.scalar_type()) / 1000;
    inputs.hidden_states = pipeline.scheduler().step(transformer->forward(inputs), step, x);
    latents.push_back(inputs.hidden_states);
  }
  return latents;
}

std::vector<ParallelConfig> layouts() {
  const TensorParallelConfig tensor{.tp_degree = 2};
  return {
      {},
      {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}},
      {.context_parallel_config = ContextParallelConfig{.ring_degree = 3, .ring_anything = true}},
      {.context_parallel_config = ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2, .ring_anything = true}},
      {.tensor_parallel_config = tensor},
      {.context_parallel_config = ContextParallelConfig{.ring_degree = 2}, .tensor_parallel_config = tensor},
      {.dp_degree = 2},
      {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}, .shard_weights_over = {"ulysses"}},
  };
}

TEST(Modulation, OfAllStepsAtOnceLeavesThePictureWhatItWas) {
  for (const auto& config : layouts()) {
    on_threads(config.ranks(), [&](World& world) {
      FluxPipelineOptions options{.dtype = at::kFloat};
      if (config.ranks() > 1) options.parallel_config = config;
      auto pipeline = load(world, options);
      const auto output = pipeline.generate(config.dp_degree > 1 ? small({"a red circle", "a blue square"}) : small(),
                                            {.keep_latents = true, .keep_transformer_inputs = true});
      const auto expected = step_by_step(pipeline, output);
      ASSERT_EQ(output.latents.size(), expected.size());
      for (size_t step = 0; step < expected.size(); ++step) {
        // Under dp a group's pictures are fewer rows than the whole batch, and round otherwise.
        EXPECT_LE(absolute_error(output.latents[step], expected[step]), config.dp_degree > 1 ? 1e-5 : 1e-6);
      }
    });
  }
}

TEST(Modulation, IsBitForBitThatOfEveryStepAlone) {
  World world({.device = "cpu"});
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    auto transformer = load(world, {.dtype = dtype}).transformer();
    const at::NoGradGuard no_grad;
    const int64_t steps = 5, batch = 2, rows = steps * batch;
    const auto pooled = at::arange(rows * transformer->config().pooled_projection_dim).sin().view({rows, -1}).to(dtype);
    const FluxTransformerInputs all{
        .pooled_projections = pooled,
        .timestep = at::linspace(1, 0.2, steps).repeat_interleave(batch),
        .guidance = transformer->config().guidance_embeds ? at::full({rows}, 3.5) : at::Tensor()};
    const auto together = transformer->modulations(all, batch);
    for (int64_t step = 0; step < steps; ++step) {
      const FluxTransformerInputs single{
          .pooled_projections = pooled.narrow(0, step * batch, batch),
          .timestep = all.timestep.narrow(0, step * batch, batch),
          .guidance = all.guidance.defined() ? all.guidance.narrow(0, step * batch, batch) : at::Tensor()};
      const auto apart = transformer->modulations(single), part = together.rows(step * batch, batch);
      for (size_t layer = 0; layer < apart.layers.size(); ++layer) {
        EXPECT_TRUE(at::equal(apart.layers[layer], part.layers[layer])) << dtype << " layer " << layer;
      }
    }
    expect_failure<ShapeError>([&] { transformer->modulations(all, 3); }, {"10 rows", "3 at once"});
  }
}

TEST(Modulation, TakesNoMemoryDuringTheSteps) {
  for (const auto& config : layouts()) {
    on_threads(config.ranks(), [&](World& world) {
      FluxPipelineOptions options{.dtype = at::kFloat};
      if (config.ranks() > 1) options.parallel_config = config;
      const bool is_sharded = !config.shard_weights_over.empty();
      auto pipeline = load(world, options);
      const auto transformer = pipeline.transformer();
      const auto whole = bytes_of(transformer);
      auto inputs = small({"a red circle", "a blue square"});
      int64_t steps = 0;
      inputs.callback_on_step_end = [&](StepEnd&) {
        ++steps;
        if (is_sharded) return;  // between their uses the blocks have no memory at all
        EXPECT_EQ(bytes_of(transformer).modulation, 0);
        EXPECT_EQ(bytes_of(transformer).rest, whole.rest);
      };
      const auto first = pipeline.generate(inputs), second = pipeline.generate(inputs);
      EXPECT_EQ(steps, 6);
      if (world.rank() == 0) {
        EXPECT_TRUE(at::equal(first.image, second.image));
      }
      if (is_sharded) return;
      EXPECT_GT(whole.modulation, 0);
      EXPECT_EQ(first.transformer_parameter_bytes, whole.rest);
      int64_t vae = 0;
      for (const auto& parameter : pipeline.vae()->parameters()) vae += static_cast<int64_t>(parameter.nbytes());
      EXPECT_EQ(first.parameters.total, whole.rest + vae);
      EXPECT_EQ(bytes_of(pipeline.transformer()).modulation, whole.modulation);  // whoever asks for it gets it whole
    });
  }
}

// Bytes of the mapping of a file that this process has in memory.
int64_t resident_bytes(const std::string& file) {
  std::ifstream maps("/proc/self/smaps");
  int64_t bytes = 0;
  bool is_its = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first.find('-') != std::string::npos && first.back() != ':') is_its = line.ends_with(file);
    int64_t kilobytes = 0;
    if (is_its && first == "Rss:" && words >> kilobytes) bytes += 1024 * kilobytes;
  }
  return bytes;
}

TEST(Modulation, LeavesNoPagesOfTheFileBehind) {
  World world({.device = "cpu"});
  const std::string file = "flux-shapes/transformer/diffusion_pytorch_model.safetensors";
  int64_t given_back = 0, kept = 0;
  for (const bool keep : {false, true}) {
    auto pipeline = load(world, {.keep_loaded = keep});
    auto inputs = small();
    inputs.callback_on_step_end = [&](StepEnd&) { (keep ? kept : given_back) = resident_bytes(file); };
    pipeline.generate(inputs, {.skip_decode = true});
  }
  World other({.device = "cpu"});
  const auto modulation = bytes_of(load(other, {}).transformer()).modulation;
  EXPECT_GT(given_back, 0);
  // All but the pages that a tensor shares with its neighbours.
  EXPECT_GE(static_cast<double>(kept - given_back), 0.5 * static_cast<double>(modulation));
}

TEST(Modulation, StaysWhereItIsToBeKept) {
  World world({.device = "cpu"});
  auto kept = load(world, {.dtype = at::kFloat, .keep_loaded = true});
  const auto transformer = kept.transformer();
  const auto whole = bytes_of(transformer);
  const auto output = kept.generate(small());
  EXPECT_EQ(bytes_of(transformer).modulation, whole.modulation);
  EXPECT_EQ(output.transformer_parameter_bytes, whole.modulation + whole.rest);
  EXPECT_TRUE(at::equal(load(world, {.dtype = at::kFloat}).generate(small()).image, output.image));
}

// What was trained is nowhere else.
TEST(Modulation, StaysWhereItWasChanged) {
  World world({.device = "cpu"});
  auto pipeline = load(world, {.dtype = at::kFloat});
  const auto before = pipeline.generate(small());
  const auto transformer = pipeline.transformer();
  const auto name = "transformer_blocks.0.norm1.linear.bias";
  const auto changed = transformer->named_parameters()[name];
  {
    const at::NoGradGuard no_grad;
    changed.add_(0.5);
  }
  const auto expected = changed.detach().clone();
  const auto first = pipeline.generate(small()), second = pipeline.generate(small());
  EXPECT_GT(absolute_error(first.image, before.image), 1e-4);
  EXPECT_TRUE(at::equal(first.image, second.image));
  EXPECT_TRUE(at::equal(changed, expected));
  EXPECT_EQ(bytes_of(transformer).modulation, static_cast<int64_t>(changed.nbytes()));
}

TEST(Modulation, IsThereAgainForWhoeverUsesTheTransformer) {
  World world({.device = "cpu"});
  auto pipeline = load(world, {.dtype = at::kFloat});
  const auto transformer = pipeline.transformer();
  const auto output = pipeline.generate(small(), {.keep_latents = true, .keep_transformer_inputs = true});
  EXPECT_EQ(bytes_of(transformer).modulation, 0);
  const auto& given = output.transformer_inputs;
  const FluxTransformerInputs inputs{.hidden_states = given.at("hidden_states"),
                                     .encoder_hidden_states = given.at("encoder_hidden_states"),
                                     .pooled_projections = given.at("pooled_projections"),
                                     .timestep = given.at("timestep"),
                                     .img_ids = given.at("img_ids"),
                                     .txt_ids = given.at("txt_ids"),
                                     .guidance = given.contains("guidance") ? given.at("guidance") : at::Tensor()};
  // Gradients are enabled here, and reach the weights.
  auto holder = transformer;
  holder->forward(inputs).sum().backward();
  EXPECT_GT(bytes_of(transformer).modulation, 0);
  EXPECT_TRUE(transformer->named_parameters()["norm_out.linear.weight"].grad().defined());
  holder->release_modulation_weights();  // not while gradients are recorded
  EXPECT_GT(bytes_of(transformer).modulation, 0);
  const auto modulations = holder->modulations(inputs);
  EXPECT_TRUE(modulations.layers.front().requires_grad());
  auto prepared = inputs;
  prepared.modulations = modulations;
  prepared.pooled_projections = prepared.timestep = prepared.guidance = at::Tensor();
  prepared.rotary = holder->rotary_table(inputs.txt_ids, inputs.img_ids);
  EXPECT_TRUE(at::equal(holder->forward(prepared), holder->forward(inputs)));
}

TEST(Modulation, OfOtherRowsOrLayersIsRefused) {
  World world({.device = "cpu"});
  auto pipeline = load(world, {.dtype = at::kFloat});
  const auto output = pipeline.generate(small(), {.keep_transformer_inputs = true, .skip_decode = true});
  auto transformer = pipeline.transformer();
  const auto& given = output.transformer_inputs;
  FluxTransformerInputs inputs{.hidden_states = given.at("hidden_states"),
                               .encoder_hidden_states = given.at("encoder_hidden_states"),
                               .pooled_projections = given.at("pooled_projections"),
                               .timestep = given.at("timestep"),
                               .img_ids = given.at("img_ids"),
                               .txt_ids = given.at("txt_ids"),
                               .guidance = given.contains("guidance") ? given.at("guidance") : at::Tensor()};
  auto wrong = inputs;
  wrong.modulations = transformer->modulations(inputs);
  wrong.modulations.layers.pop_back();
  expect_failure<ShapeError>([&] { transformer->forward(wrong); }, {"modulations has", "layers"});
  wrong.modulations = transformer->modulations(inputs);
  wrong.modulations.layers[1] = wrong.modulations.layers[1].repeat({2, 1});
  expect_failure<ShapeError>([&] { transformer->forward(wrong); }, {"modulations", "batch"});
  wrong = inputs;
  wrong.rotary = transformer->rotary_table(inputs.txt_ids, inputs.img_ids).rows(0, 3);
  expect_failure<ShapeError>([&] { transformer->forward(wrong); }, {"rotary has 3 rows"});
  wrong = inputs;
  wrong.pooled_projections = inputs.pooled_projections.narrow(1, 0, 1);
  expect_failure<ShapeError>([&] { transformer->modulations(wrong); }, {"pooled_projections"});
  on_threads(2, [](World& ranks) {
    const ParallelConfig config{.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2},
                                .shard_weights_over = {"ulysses"}};
    auto sharded = load(ranks, {.dtype = at::kFloat, .parallel_config = config});
    expect_failure<ConfigError>([&] { sharded.transformer()->modulations({}); }, {"shard_weights_over", "block"});
  });
}

TEST(Modulation, ServesBothPassesOfTrueGuidance) {
  World world({.device = "cpu"});
  const auto alone = load(world, {.dtype = at::kFloat}).generate(guided());
  for (const auto& config : {ParallelConfig{.cfg_degree = 2}, ParallelConfig{.dp_degree = 2},
                             ParallelConfig{.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}}}) {
    on_threads(2, [&](World& ranks) {
      const auto output = load(ranks, {.dtype = at::kFloat, .parallel_config = config}).generate(guided());
      if (ranks.rank() == 0) {
        EXPECT_LE(absolute_error(output.image, alone.image), 1e-5);
      }
    });
  }
}

}  // namespace
}  // namespace pardiff::testing
