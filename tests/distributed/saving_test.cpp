// Models that tensor parallelism has cut are saved as if they had never been.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/models/save.h>
#include <pardiff/models/t5_encoder.h>
#include <pardiff/pipelines/auto_model.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "distributed/toy_model.h"
#include "parity/parts/golden_part.h"
#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

using testing::GoldenPart;
using testing::on_threads;
using testing::TemporaryFolder;

FluxTransformer2DModel guided() {
  static const GoldenPart golden("golden/transformer_guided");
  return golden.load<FluxTransformer2DModel>(FluxTransformerConfig::from_file(golden.config()));
}

ParallelConfig ring_and_tensor(int ring, int tp) {
  ParallelConfig config{.tensor_parallel_config = TensorParallelConfig{.tp_degree = tp}};
  if (ring > 1) config.context_parallel_config = ContextParallelConfig{.ring_degree = ring, .ring_anything = true};
  return config;
}

void expect_bit_equal(const Checkpoint& saved, torch::nn::Module& model, at::ScalarType dtype = at::kFloat) {
  const auto parameters = model.named_parameters();
  EXPECT_EQ(saved.names().size(), parameters.size());
  for (const auto& parameter : parameters) {
    ASSERT_TRUE(saved.contains(parameter.key())) << parameter.key();
    EXPECT_TRUE(at::equal(saved.tensor(parameter.key()), parameter.value().to(dtype))) << parameter.key();
  }
}

TEST(Saving, PutsTensorParallelWeightsTogetherBitForBit) {
  for (const auto& [ring, tp] : {std::pair{1, 2}, {2, 2}, {1, 4}}) {
    const TemporaryFolder folder;
    on_threads(ring * tp, [&, degrees = std::pair{ring, tp}](World& world) {
      auto model = guided();
      model->enable_parallelism(ring_and_tensor(degrees.first, degrees.second), world);
      save_pretrained(*model, folder / "model", world, {.max_shard_bytes = 100'000});
    });
    const auto saved = Checkpoint::open(folder / "model", "diffusion_pytorch_model");
    EXPECT_GT(saved.files().size(), 2u);
    EXPECT_TRUE(saved.stray_files().empty());
    auto whole = guided();
    expect_bit_equal(saved, *whole);
    // And what a user gets who loads it on one rank.
    World one({.device = "cpu"});
    const auto loaded = AutoModel::from_pretrained(folder / "model", one);
    expect_bit_equal(saved, *loaded);
  }
}

TEST(Saving, WritesTheFilesThatOneRankWrites) {
  const TemporaryFolder folder;
  const auto save = [&](const std::string& name, int tp) {
    on_threads(tp, [&](World& world) {
      auto model = guided();
      if (tp > 1) model->enable_parallelism(TensorParallelConfig{.tp_degree = tp}, world);
      save_pretrained(*model, folder / name, world, {.max_shard_bytes = 200'000});
    });
  };
  save("one", 1);
  save("two", 2);
  ASSERT_EQ(folder.names("two"), folder.names("one"));
  for (const auto& name : folder.names("one")) {
    EXPECT_EQ(testing::content_of(folder / "two" / name), testing::content_of(folder / "one" / name)) << name;
  }
}

TEST(Saving, LeavesNoShardOfAnOlderSave) {
  const TemporaryFolder folder;
  on_threads(2, [&](World& world) {
    auto model = guided();
    model->enable_parallelism(TensorParallelConfig{.tp_degree = 2}, world);
    save_pretrained(*model, folder / "model", world, {.max_shard_bytes = 50'000});
    save_pretrained(*model, folder / "model", world, {.max_shard_bytes = 200'000});
    save_pretrained(*model, folder / "model", world);
  });
  EXPECT_EQ(folder.names("model"), (std::vector<std::string>{"config.json", "diffusion_pytorch_model.safetensors"}));
}

TEST(Saving, CutsPackedBlocksBackIntoTheirOrder) {
  const TemporaryFolder folder;
  auto whole = testing::make_toy(1);
  on_threads(4, [&](World& world) {
    auto model = testing::make_toy(1);
    apply_tensor_parallel(*model, {.tp_degree = 4}, world, testing::toy_tensor_plan());
    save_parameters(*model, folder.path(), "model", world);
  });
  expect_bit_equal(Checkpoint::open(folder.path(), "model"), *whole, at::kDouble);
}

TEST(Saving, WritesTextEncodersAsTransformersReadsThem) {
  const TemporaryFolder folder;
  const GoldenPart clip("golden/part_clip"), t5("golden/part_t5");
  on_threads(2, [&](World& world) {
    auto model = clip.load<ClipTextModel>(ClipTextConfig::from_file(clip.config()));
    model->enable_parallelism(TensorParallelConfig{.tp_degree = 2}, world);
    save_pretrained(*model, folder / "clip", world, {.dtype = at::kBFloat16});
  });
  on_threads(3, [&](World& world) {
    auto model = t5.load<T5EncoderModel>(T5Config::from_file(t5.config()));
    model->enable_parallelism(TensorParallelConfig{.tp_degree = 3}, world);
    save_pretrained(*model, folder / "t5", world);
  });
  EXPECT_EQ(folder.names("clip"), (std::vector<std::string>{"config.json", "model.safetensors"}));
  EXPECT_NE(testing::content_of(folder / "clip/config.json").find("\"dtype\": \"bfloat16\""), std::string::npos);
  expect_bit_equal(Checkpoint::open(folder / "clip", "model"),
                   *clip.load<ClipTextModel>(ClipTextConfig::from_file(clip.config())), at::kBFloat16);
  expect_bit_equal(Checkpoint::open(folder / "t5", "model"),
                   *t5.load<T5EncoderModel>(T5Config::from_file(t5.config())));
}

TEST(Saving, FailsOnEveryRankAlikeAndCanBeRepeated) {
  const TemporaryFolder folder;
  testing::put(folder / "file", "not a folder");
  std::mutex mutex;
  std::set<std::string> messages;
  on_threads(2, [&](World& world) {
    auto model = guided();
    model->enable_parallelism(TensorParallelConfig{.tp_degree = 2}, world);
    EXPECT_THROW(save_pretrained(*model, folder / "model", world, {.max_shard_bytes = 0}), UsageError);
    try {
      save_pretrained(*model, folder / "file", world);
      ADD_FAILURE() << "saved into a file";
    } catch (const CheckpointError& error) {
      const std::lock_guard lock(mutex);
      messages.insert(error.what());
    }
    save_pretrained(*model, folder / "model", world);
  });
  EXPECT_EQ(messages.size(), 1u);
  EXPECT_NE(messages.begin()->find((folder / "file").string()), std::string::npos);
  EXPECT_EQ(testing::content_of(folder / "file"), "not a folder");
  expect_bit_equal(Checkpoint::open(folder / "model", "diffusion_pytorch_model"), *guided());
}

}  // namespace
}  // namespace pardiff
