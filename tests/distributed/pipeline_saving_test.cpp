// Pipelines are saved whole, whoever held which part of them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;
using testing::content_of;
using testing::on_threads;
using testing::TemporaryFolder;

const std::vector<std::pair<std::string, std::string>> kParts = {{"transformer", "diffusion_pytorch_model"},
                                                                 {"text_encoder", "model"},
                                                                 {"text_encoder_2", "model"},
                                                                 {"vae", "diffusion_pytorch_model"}};

fs::path source() { return testing::model_path("flux-shapes"); }

FluxPipelineOptions on_two_ranks() {
  return {.parallel_config = ParallelConfig{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}}};
}

std::vector<uint8_t> picture(const fs::path& model) {
  World one({.device = "cpu", .threads = 1});
  auto pipeline = FluxPipeline::from_pretrained(model.string(), one);
  return pipeline({.prompt = "a lighthouse",
                   .height = 64,
                   .width = 64,
                   .num_inference_steps = 1,
                   .seed = 7,
                   .max_sequence_length = 16})
      .front()
      .rgb;
}

TEST(PipelineSaving, GivesTheTensorsFilesAndPictureThatWereLoaded) {
  const TemporaryFolder folder;
  const auto saved = folder / "saved";
  on_threads(2, [&](World& world) {
    FluxPipeline::from_pretrained(source().string(), world, on_two_ranks()).save_pretrained(saved);
  });
  for (const auto& [part, stem] : kParts) {
    const auto before = Checkpoint::open(source() / part, stem), after = Checkpoint::open(saved / part, stem);
    ASSERT_EQ(after.names(), before.names()) << part;
    for (const auto& name : before.names()) {
      EXPECT_EQ(after.info(name).dtype, before.info(name).dtype) << part << " " << name;
      EXPECT_TRUE(at::equal(after.tensor(name), before.tensor(name))) << part << " " << name;
    }
    EXPECT_TRUE(fs::exists(saved / part / "config.json")) << part;
  }
  for (const char* part : {"tokenizer", "tokenizer_2"}) {
    for (const auto& entry : fs::directory_iterator(source() / part)) {
      const auto name = entry.path().filename();
      EXPECT_EQ(content_of(saved / part / name), content_of(entry.path())) << part << " " << name;
    }
  }
  EXPECT_EQ(content_of(saved / "model_index.json"), content_of(source() / "model_index.json"));
  EXPECT_EQ(picture(saved), picture(source()));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"saved"});
}

TEST(PipelineSaving, WritesAnotherDtypeAndShards) {
  const TemporaryFolder folder;
  const auto saved = folder / "saved";
  World one({.device = "cpu"});
  const auto pipeline = FluxPipeline::from_pretrained(source().string(), one);
  pipeline.save_pretrained(saved, {.max_shard_bytes = 1'000'000, .variant = "fp32", .dtype = at::kFloat});
  for (const auto& [part, stem] : kParts) {
    const auto before = Checkpoint::open(source() / part, stem), after = Checkpoint::open(saved / part, stem, "fp32");
    EXPECT_TRUE(after.stray_files().empty()) << part;
    for (const auto& name : before.names()) {
      EXPECT_EQ(after.info(name).dtype, at::kFloat) << part << " " << name;
      EXPECT_TRUE(at::equal(after.tensor(name), before.tensor(name).to(at::kFloat))) << part << " " << name;
    }
  }
  EXPECT_GT(Checkpoint::open(saved / "transformer", "diffusion_pytorch_model", "fp32").files().size(), 1u);
  testing::expect_mentions(content_of(saved / "text_encoder/config.json"), {"\"dtype\": \"float32\""});
}

TEST(PipelineSaving, SavesWhatTheCallerHasChangedOrBroughtAlong) {
  const TemporaryFolder folder;
  const auto saved = folder / "saved";
  World one({.device = "cpu"});
  auto pipeline = FluxPipeline::from_pretrained(source().string(), one,
                                                {.tokenizer = ClipTokenizer::from_pretrained(source() / "tokenizer")});
  const auto change = [](const torch::nn::Module& model, const char* name) {
    const at::NoGradGuard no_grad;
    auto parameters = model.named_parameters();
    parameters[name].zero_();  // a page of this process's own: the file stays
  };
  change(*pipeline.transformer(), "proj_out.bias");
  change(*pipeline.vae(), "decoder.conv_out.bias");
  pipeline.save_pretrained(saved);
  const auto weight = [&](const char* part, const char* name) {
    return Checkpoint::open(saved / part, "diffusion_pytorch_model").tensor(name);
  };
  EXPECT_EQ(weight("transformer", "proj_out.bias").abs().max().item<float>(), 0.f);
  EXPECT_EQ(weight("vae", "decoder.conv_out.bias").abs().max().item<float>(), 0.f);
  EXPECT_GT(weight("vae", "encoder.conv_in.weight").abs().max().item<float>(), 0.f);
  EXPECT_EQ(content_of(saved / "tokenizer/merges.txt"), content_of(source() / "tokenizer/merges.txt"));
}

// A folder of which files may be taken away.
fs::path copy_of_source(const TemporaryFolder& folder) {
  fs::copy(source(), folder / "source", fs::copy_options::recursive);
  return folder / "source";
}

TEST(PipelineSaving, FailsOnEveryRankAlikeLeavesNothingAndCanBeRepeated) {
  const TemporaryFolder folder;
  const auto model = copy_of_source(folder);
  fs::create_directory(folder / "full");
  testing::put(folder / "full/precious", "data");
  std::mutex mutex;
  std::set<std::string> full, missing;
  on_threads(2, [&](World& world) {
    const auto pipeline = FluxPipeline::from_pretrained(model.string(), world, on_two_ranks());
    const auto refusal = [&](const fs::path& target) {
      return testing::refusal<CheckpointError>([&] { pipeline.save_pretrained(target); });
    };
    const auto first = refusal(folder / "full");
    if (world.rank() == 0) fs::rename(model / "vae", model / "hidden");
    world.text_from_rank_0("hidden");
    const auto second = refusal(folder / "saved");
    if (world.rank() == 0) fs::rename(model / "hidden", model / "vae");
    world.text_from_rank_0("there again");
    const std::lock_guard lock(mutex);
    full.insert(first);
    missing.insert(second);
  });
  ASSERT_EQ(full.size(), 1u);
  testing::expect_mentions(*full.begin(), {(folder / "full").string(), "not empty"});
  ASSERT_EQ(missing.size(), 1u);
  testing::expect_mentions(*missing.begin(), {(model / "vae").string()});
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"full", "source"}));
  EXPECT_EQ(folder.names("full"), std::vector<std::string>{"precious"});
  on_threads(2, [&](World& world) {
    FluxPipeline::from_pretrained(model.string(), world, on_two_ranks()).save_pretrained(folder / "saved");
  });
  EXPECT_EQ(picture(folder / "saved"), picture(source()));
}

TEST(PipelineSaving, RefusesADecoderAloneThatTheCallerBrought) {
  const TemporaryFolder folder;
  World one({.device = "cpu"});
  const auto loaded = FluxPipeline::from_pretrained(source().string(), one);
  const auto pipeline = FluxPipeline::from_pretrained(source().string(), one, {.vae = loaded.vae()});
  testing::expect_failure<ConfigError>([&] { pipeline.save_pretrained(folder / "saved"); }, {"decoder", "kAll"});
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace pardiff
