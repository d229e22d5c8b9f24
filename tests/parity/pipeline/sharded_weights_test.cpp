// Weights of which every rank of some mesh axes keeps its part.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/models/save.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include <algorithm>
#include <functional>

#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

FluxPipelineInputs small() {
  return {.prompt = {"a red circle", "a blue square"},
          .height = 32,
          .width = 64,
          .num_inference_steps = 2,
          .seed = 5,
          .max_sequence_length = 16};
}

std::vector<FluxPipelineOutput> run_together(const ParallelConfig& config) {
  std::vector<FluxPipelineOutput> outputs(static_cast<size_t>(config.ranks()));
  on_threads(config.ranks(), [&](World& world) {
    auto pipeline = FluxPipeline::from_pretrained(model_path("flux-shapes"), world,
                                                  {.dtype = at::kFloat, .parallel_config = config});
    outputs[static_cast<size_t>(world.rank())] = pipeline.generate(small());
  });
  return outputs;
}

int64_t elements_of(const torch::nn::Module& module) {
  int64_t elements = 0;
  for (const auto& parameter : module.parameters()) elements += parameter.numel();
  return elements;
}

TEST(ShardedWeights, TakeTheirPartAndTwoBlocks) {
  World world({.device = "cpu"});
  auto alone =
      FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat, .keep_loaded = true});
  const auto expected = alone.generate(small());
  int64_t block = 0;
  for (const auto& unit : alone.transformer()->weight_units()) block = std::max(block, 4 * elements_of(*unit));
  const auto whole = 4 * elements_of(*alone.transformer());
  EXPECT_EQ(expected.transformer_parameter_bytes, whole);
  EXPECT_EQ(expected.peak_transformer_parameter_bytes, whole);
  const ContextParallelConfig ulysses{.ulysses_degree = 2}, unified{.ring_degree = 2, .ulysses_degree = 2};
  const std::pair<ParallelConfig, int> cases[] = {
      {{.context_parallel_config = ulysses, .shard_weights_over = {"ulysses"}}, 2},
      {{.context_parallel_config = unified, .shard_weights_over = {"ring"}}, 2},
      {{.context_parallel_config = unified, .shard_weights_over = {"ring", "ulysses"}}, 4},
      {{.context_parallel_config = ulysses, .fsdp_degree = 2, .shard_weights_over = {"ulysses"}}, 4},
      {{.dp_degree = 2, .shard_weights_over = {"dp"}}, 2},
  };
  for (const auto& [config, parts] : cases) {
    const auto outputs = run_together(config);
    EXPECT_LE(absolute_error(outputs[0].image, expected.image), 1e-5);
    for (const auto& output : outputs) {
      EXPECT_LE(static_cast<double>(output.transformer_parameter_bytes), 1.01 * static_cast<double>(whole) / parts);
      EXPECT_GT(output.peak_transformer_parameter_bytes, output.transformer_parameter_bytes + block);
      EXPECT_LE(static_cast<double>(output.peak_transformer_parameter_bytes),
                1.01 * (static_cast<double>(whole) / parts + 2 * static_cast<double>(block)));
    }
  }
}

// Ulysses gathers nothing else.
TEST(ShardedWeights, SendTheirPartOfEveryUnitOnceAStep) {
  World world({.device = "cpu"});
  auto alone = FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat});
  const auto units = alone.transformer()->weight_units();
  for (const int ranks : {2, 4}) {
    int64_t bytes = 0;
    for (const auto& unit : units) bytes += (ranks - 1) * ((elements_of(*unit) + ranks - 1) / ranks) * 4;
    for (const auto& output : run_together({.context_parallel_config = ContextParallelConfig{.ulysses_degree = ranks},
                              .shard_weights_over = {"ulysses"}})) {
      EXPECT_EQ(output.communication.at("all_gather").calls, 2 * std::ssize(units));
      EXPECT_EQ(output.communication.at("all_gather").bytes_sent, 2 * bytes);
    }
  }
}

TEST(ShardedWeights, AgreeWhetherReadOrCutInMemory) {
  const ParallelConfig config{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}, .fsdp_degree = 2};
  const auto read = run_together(config);
  std::vector<FluxPipelineOutput> cut(4);
  on_threads(4, [&](World& world) {
    auto pipeline = FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat});
    pipeline.transformer()->enable_parallelism(config, world);
    cut[static_cast<size_t>(world.rank())] = pipeline.generate(small());
  });
  EXPECT_TRUE(at::equal(cut[0].image, read[0].image));
  EXPECT_EQ(cut[3].transformer_parameter_bytes, read[3].transformer_parameter_bytes);
}

FluxPipelineInputs first_of(FluxPipelineInputs inputs) {
  inputs.prompt = "a red circle";
  return inputs;
}

TEST(FoldedGroups, ShareThePictureThatIsAlone) {
  World alone({.device = "cpu"});
  auto one_rank = FluxPipeline::from_pretrained(model_path("flux-shapes"), alone, {.dtype = at::kFloat});
  const auto one = one_rank.generate(first_of(small())), two = one_rank.generate(small());
  const ParallelConfig configs[] = {
      {.fsdp_degree = 2},
      {.context_parallel_config = ContextParallelConfig{.ring_degree = 2}, .fsdp_degree = 2},
      {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}, .fsdp_degree = 2},
  };
  for (const auto& config : configs) {
    on_threads(config.ranks(), [&](World& world) {
      auto pipeline = FluxPipeline::from_pretrained(model_path("flux-shapes"), world,
                                                    {.dtype = at::kFloat, .parallel_config = config});
      const auto both = pipeline.generate(small()), folded = pipeline.generate(first_of(small()));
      const auto again = pipeline.generate(small());
      EXPECT_EQ(pipeline.transformer()->parallel_config()->fsdp_degree, 2);
      const int ring = config.context_parallel_config ? config.context_parallel_config->ring() : 1;
      EXPECT_EQ(both.communication.contains("send"), ring > 1);
      EXPECT_TRUE(folded.communication.contains("send"));
      EXPECT_EQ(folded.transformer_parameter_bytes, both.transformer_parameter_bytes);
      if (world.rank() > 0) return;
      EXPECT_LE(absolute_error(folded.image, one.image), 1e-5);
      EXPECT_LE(absolute_error(both.image, two.image), 1e-5);
      EXPECT_TRUE(at::equal(again.image, both.image));
    });
  }
}

// Their ranks are not neighbours of the ring's then.
TEST(FoldedGroups, ShareItBesideTwoPassesAndOnAMeshOfOnesOwn) {
  auto guided = first_of(small());
  guided.negative_prompt = "a blue square";
  guided.true_cfg_scale = 2;
  World alone({.device = "cpu"});
  auto one_rank = FluxPipeline::from_pretrained(model_path("flux-shapes"), alone, {.dtype = at::kFloat});
  const auto one = one_rank.generate(guided).image;
  const auto expect_one = [&](int ranks, const std::function<ParallelConfig(int)>& config_of) {
    on_threads(ranks, [&](World& world) {
      auto pipeline = FluxPipeline::from_pretrained(model_path("flux-shapes"), world,
                                                    {.dtype = at::kFloat, .parallel_config = config_of(world.rank())});
      const auto output = pipeline.generate(guided);
      EXPECT_TRUE(output.communication.contains("send"));
      if (world.rank() > 0) return;
      EXPECT_LE(absolute_error(output.image, one), 1e-5);
    });
  };
  expect_one(4, [](int) { return ParallelConfig{.cfg_degree = 2, .fsdp_degree = 2}; });
  expect_one(4, [](int rank) {
    const Mesh mesh(rank, 4, {{"ring", 2}, {"ulysses", 1}, {"fsdp", 2}});
    return ParallelConfig{.context_parallel_config = ContextParallelConfig{.ring_degree = 2, .mesh = mesh},
                          .fsdp_degree = 2};
  });
  expect_one(4, [](int rank) {
    const Mesh mesh(rank, 4, {{"tp", 2}, {"fsdp", 2}});
    return ParallelConfig{.tensor_parallel_config = TensorParallelConfig{.mesh = mesh}, .fsdp_degree = 2};
  });
}

TEST(FoldedGroups, KeepTheRulesOfTheLongerRing) {
  on_threads(2, [](World& world) {
    auto pipeline = FluxPipeline::from_pretrained(
        model_path("flux-shapes"), world, {.dtype = at::kFloat, .parallel_config = ParallelConfig{.fsdp_degree = 2}});
    auto odd = first_of(small());
    odd.max_sequence_length = 15;
    expect_failure<ConfigError>([&] { pipeline.generate(odd); }, {"15", "ring_anything"});
    const auto good = pipeline.generate(small());  // the groups are what they were
    EXPECT_FALSE(good.communication.contains("send"));
  });
}

TEST(FoldedGroups, NeedAPictureForEachDpGroup) {
  const auto one = first_of(small());
  const auto refusal = [&](const ParallelConfig& config, const std::vector<std::string>& words) {
    expect_failure<ConfigError>([&] { FluxPipeline::check_layout(one, config); }, words);
  };
  refusal({.dp_degree = 2, .fsdp_degree = 2}, {"dp_degree is 2", "1 picture ", "--ulysses-degree"});
}

TEST(ShardedWeights, ComeBackWhole) {
  World alone({.device = "cpu"});
  auto whole = FluxPipeline::from_pretrained(model_path("flux-shapes"), alone, {.dtype = at::kFloat});
  const auto expected = whole.transformer()->named_parameters();
  on_threads(4, [&](World& world) {
    const ParallelConfig config{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}, .fsdp_degree = 2};
    auto pipeline = FluxPipeline::from_pretrained(model_path("flux-shapes"), world,
                                                  {.dtype = at::kFloat, .parallel_config = config});
    auto transformer = pipeline.transformer();
    TemporaryFolder folder;
    expect_failure<ConfigError>([&] { save_pretrained(*transformer, folder.path(), world); },
                                {"FluxTransformer2DModel", "sharded", "disable_parallelism"});
    EXPECT_GE(transformer->weight_parts().size(), transformer->weight_units().size());
    transformer->disable_parallelism();
    EXPECT_TRUE(transformer->weight_parts().empty());
    for (const auto& parameter : transformer->named_parameters()) {
      EXPECT_TRUE(at::equal(parameter.value(), expected[parameter.key()])) << parameter.key();
    }
    transformer->enable_parallelism(config, world);  // and can be sharded again
    EXPECT_LT(transformer->weight_bytes().kept, 4 * elements_of(*whole.transformer()) / 2);
  });
}

TEST(ShardedWeights, RefuseModelsWithoutUnits) {
  on_threads(2, [](World& world) {
    auto pipeline = FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat});
    expect_failure<ConfigError>([&] { pipeline.vae()->enable_parallelism(ParallelConfig{.fsdp_degree = 2}, world); },
                                {"AutoencoderKL", "units", "fsdp_degree"});
  });
}

}  // namespace
}  // namespace pardiff::testing
