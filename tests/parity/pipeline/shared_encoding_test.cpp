// Ranks share out the texts: every encoder takes every text once.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

FluxPipelineInputs small(const Prompts& prompt) {
  return {.prompt = prompt, .height = 32, .width = 48, .num_inference_steps = 1, .seed = 3, .max_sequence_length = 16};
}

FluxPipelineInputs guided(const Prompts& prompt) {
  auto inputs = small(prompt);
  inputs.negative_prompt = "a heart";
  inputs.true_cfg_scale = 2;
  return inputs;
}

FluxPipelineOutput alone(const FluxPipelineInputs& inputs) {
  World world({.device = "cpu"});
  return FluxPipeline::from_pretrained(model_path("flux-shapes"), world, {.dtype = at::kFloat})
      .generate(inputs, {.keep_transformer_inputs = true, .skip_decode = true});
}

TEST(SharedEncoding, GivesTheNumbersOfOneRank) {
  const ContextParallelConfig ring{.ring_degree = 3, .ring_anything = true};
  const ParallelConfig configs[] = {{.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}},
                                    {.context_parallel_config = ring},
                                    {.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}},
                                    {.dp_degree = 2},
                                    {.cfg_degree = 2, .dp_degree = 2}};
  for (const auto& config : configs) {
    for (const Prompts& prompt : {Prompts("a red circle"), Prompts({"a red circle", "a blue square", "a heart"})}) {
      if (config.dp_degree > static_cast<int>(prompt.texts().size())) continue;
      const auto inputs = config.cfg_degree > 1 ? guided(prompt) : small(prompt);
      const auto expected = alone(inputs).transformer_inputs;
      on_threads(config.ranks(), [&](World& world) {
        const auto output = FluxPipeline::from_pretrained(model_path("flux-shapes"), world,
                                                          {.dtype = at::kFloat, .parallel_config = config})
                                .generate(inputs, {.keep_transformer_inputs = true, .skip_decode = true});
        if (config.cfg_degree > 1 && world.rank() > 0) return;  // it may run the other pass
        for (const char* name : {"encoder_hidden_states", "pooled_projections"}) {
          EXPECT_TRUE(at::equal(output.transformer_inputs.at(name), expected.at(name))) << name;
        }
      });
    }
  }
}

// One text: T5 on the first rank, CLIP on the last one, and neither on those between.
TEST(SharedEncoding, LoadsAnEncoderOnlyWhereItIsUsed) {
  const ContextParallelConfig ring{.ring_degree = 3, .ring_anything = true};
  std::vector<int64_t> bytes(3);
  on_threads(3, [&](World& world) {
    auto pipeline = FluxPipeline::from_pretrained(model_path("flux-shapes"), world,
                                                  {.dtype = at::kFloat, .parallel_config = ring, .keep_loaded = true});
    const auto output = pipeline.generate(small("a red circle"), {.skip_decode = true});
    bytes[static_cast<size_t>(world.rank())] = output.parameters.total;
  });
  World one({.device = "cpu"});
  const auto bytes_of = [&](const char* part) {
    int64_t sum = 0;
    const auto folder = std::filesystem::path(model_path("flux-shapes")) / part;
    const auto checkpoint = Checkpoint::open(folder, "model");
    for (const auto& name : checkpoint.names()) sum += 4 * c10::multiply_integers(checkpoint.info(name).shape);
    return sum;
  };
  EXPECT_EQ(bytes[0] - bytes[1], bytes_of("text_encoder_2"));
  EXPECT_EQ(bytes[2] - bytes[1], bytes_of("text_encoder"));
}

// The rank that meets the damage is not the only one to refuse.
TEST(SharedEncoding, FailsOnEveryRankWithOneText) {
  const TemporaryFolder folder;
  const auto model = folder.path() / "model";
  std::filesystem::copy(model_path("flux-shapes"), model, std::filesystem::copy_options::recursive);
  std::mutex mutex;
  std::set<std::string> messages;
  on_threads(2, [&](World& world) {
    auto pipeline = FluxPipeline::from_pretrained(
        model.string(), world,
        {.dtype = at::kFloat,
         .parallel_config = ParallelConfig{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}}});
    barrier(world.group());
    if (world.rank() == 0) {
      const auto file = model / "text_encoder_2" / "model.safetensors";
      std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
    }
    barrier(world.group());
    const auto message = refusal<CheckpointError>([&] { pipeline.generate(small("a red circle")); });
    const std::lock_guard lock(mutex);
    messages.insert(message);
  });
  ASSERT_EQ(messages.size(), 1u);
  expect_mentions(*messages.begin(), {"text_encoder_2", "model.safetensors"});
}

}  // namespace
}  // namespace pardiff::testing
