#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/checkpoint.h>

#include <nlohmann/json.hpp>

#include "support/failure.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;
using testing::content_of;
using testing::expect_mentions;
using testing::put;
using testing::refusal;
using testing::TemporaryFolder;
using Names = std::vector<std::string>;

constexpr const char* kStem = "diffusion_pytorch_model";
constexpr const char* kIndex = "diffusion_pytorch_model.safetensors.index.json";

// 40 bytes each.
std::vector<NamedTensor> five_tensors() {
  std::vector<NamedTensor> tensors;
  for (const char* name : {"e", "d", "c", "b", "a"}) tensors.push_back({name, at::randn({10})});
  return tensors;
}

void expect_holds(const Checkpoint& checkpoint, const std::vector<NamedTensor>& tensors) {
  EXPECT_EQ(checkpoint.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(checkpoint.contains(name) && at::equal(checkpoint.tensor(name), tensor)) << name;
  }
}

void put_index(const fs::path& folder, const std::map<std::string, std::string>& weights) {
  put(folder / kIndex, nlohmann::json{{"metadata", {{"total_size", 0}}}, {"weight_map", weights}}.dump());
}

TEST(Checkpoint, OpensThePartsOfADiffusersFolder) {
  const auto transformer = Checkpoint::open(testing::model_path("flux-shapes/transformer"), kStem);
  EXPECT_TRUE(transformer.contains("x_embedder.weight"));
  EXPECT_EQ(transformer.info("x_embedder.weight").dtype, at::kBFloat16);
  EXPECT_EQ(transformer.files().size(), 1U);
  EXPECT_TRUE(transformer.stray_files().empty());
  int64_t total = 0;
  for (const auto& name : transformer.names()) total += static_cast<int64_t>(transformer.tensor(name).nbytes());
  EXPECT_EQ(transformer.total_bytes(), total);
  EXPECT_EQ(transformer.bytes_copied(), 0);
  EXPECT_FALSE(Checkpoint::open(testing::model_path("flux-shapes/text_encoder"), "model").names().empty());
}

TEST(Checkpoint, SavesOneFileWhenItFits) {
  const TemporaryFolder folder;
  const auto tensors = five_tensors();
  save_checkpoint(folder / "new/transformer", kStem, tensors);
  EXPECT_EQ(folder.names("new/transformer"), Names{"diffusion_pytorch_model.safetensors"});
  expect_holds(Checkpoint::open(folder / "new/transformer", kStem), tensors);
}

TEST(Checkpoint, SavesShardsInTheOrderGivenWithAnIndex) {
  const TemporaryFolder folder;
  const auto tensors = five_tensors();
  save_checkpoint(folder.path(), kStem, tensors, 80);
  EXPECT_EQ(folder.names(), (Names{"diffusion_pytorch_model-00001-of-00003.safetensors",
                                   "diffusion_pytorch_model-00002-of-00003.safetensors",
                                   "diffusion_pytorch_model-00003-of-00003.safetensors", kIndex}));
  const auto index = nlohmann::json::parse(content_of(folder / kIndex));
  EXPECT_EQ(index["metadata"]["total_size"], 200);
  EXPECT_EQ(index["weight_map"].size(), 5U);
  EXPECT_EQ(index["weight_map"]["e"], "diffusion_pytorch_model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["c"], "diffusion_pytorch_model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["a"], "diffusion_pytorch_model-00003-of-00003.safetensors");
  const auto checkpoint = Checkpoint::open(folder.path(), kStem);
  expect_holds(checkpoint, tensors);
  EXPECT_EQ(checkpoint.file_of("c").filename(), "diffusion_pytorch_model-00002-of-00003.safetensors");
  EXPECT_EQ(checkpoint.total_bytes(), 200);
}

TEST(Checkpoint, ATensorLargerThanAShardGetsItsOwn) {
  const TemporaryFolder folder;
  const std::vector<NamedTensor> tensors = {{"a", at::ones({10})}, {"large", at::ones({100})}, {"b", at::ones({10})}};
  save_checkpoint(folder.path(), kStem, tensors, 80);
  const auto index = nlohmann::json::parse(content_of(folder / kIndex));
  EXPECT_EQ(index["weight_map"]["a"], index["weight_map"]["b"]);
  EXPECT_NE(index["weight_map"]["a"], index["weight_map"]["large"]);
  expect_holds(Checkpoint::open(folder.path(), kStem), tensors);
}

TEST(Checkpoint, LastTensorLargerThanAShardLeavesNoEmptyOne) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), kStem, {{"large", at::ones({100})}}, 80);
  EXPECT_EQ(folder.names(), Names{"diffusion_pytorch_model.safetensors"});
}

TEST(Checkpoint, SavingOverAnotherShardingLeavesNothingStale) {
  const TemporaryFolder folder;
  put(folder / "config.json", "{}");
  put(folder / "diffusion_pytorch_model.fp16.safetensors", "another variant's");
  for (const int64_t shard_bytes : {40, 80, 1000, 80, 80, 120, 1000, 1000}) {
    const auto tensors = five_tensors();
    save_checkpoint(folder.path(), kStem, tensors, shard_bytes);
    const auto checkpoint = Checkpoint::open(folder.path(), kStem);
    expect_holds(checkpoint, tensors);
    EXPECT_EQ(checkpoint.stray_files(), Names{"diffusion_pytorch_model.fp16.safetensors"});
    const std::size_t index = shard_bytes < 1000 ? 1 : 0;
    EXPECT_EQ(folder.names().size(), checkpoint.files().size() + index + 2) << ::testing::PrintToString(folder.names());
    EXPECT_EQ(fs::exists(folder / kIndex), index == 1);
  }
}

TEST(Checkpoint, CanBeSavedOverItself) {
  const TemporaryFolder folder;
  const auto tensors = five_tensors();
  save_checkpoint(folder.path(), kStem, tensors, 80);
  std::vector<NamedTensor> mapped;
  const auto checkpoint = Checkpoint::open(folder.path(), kStem);
  for (const auto& name : checkpoint.names()) mapped.push_back({name, checkpoint.tensor(name)});
  save_checkpoint(folder.path(), kStem, mapped, 80);
  expect_holds(Checkpoint::open(folder.path(), kStem), tensors);
}

TEST(Checkpoint, AFailedSaveLeavesTheOldOneAlone) {
  const TemporaryFolder folder;
  const auto tensors = five_tensors();
  save_checkpoint(folder.path(), kStem, tensors, 80);
  const auto before = folder.names();
  auto wrong = five_tensors();
  wrong.push_back({"last", at::Tensor()});
  EXPECT_THROW(save_checkpoint(folder.path(), kStem, wrong, 80), UsageError);
  wrong.back() = wrong.front();
  expect_mentions(refusal<UsageError>([&] { save_checkpoint(folder.path(), kStem, wrong, 80); }), {"'e'", "twice"});
  EXPECT_THROW(save_checkpoint(folder.path(), kStem, tensors, 0), UsageError);
  EXPECT_THROW(save_checkpoint(folder.path(), "a/b", tensors), UsageError);
  // The last shard cannot be written: a folder stands where it belongs.
  fs::create_directory(folder / "diffusion_pytorch_model-00005-of-00005.safetensors");
  EXPECT_THROW(save_checkpoint(folder.path(), kStem, five_tensors(), 40), CheckpointError);
  fs::remove(folder / "diffusion_pytorch_model-00005-of-00005.safetensors");
  EXPECT_EQ(folder.names(), before);
  expect_holds(Checkpoint::open(folder.path(), kStem), tensors);
}

TEST(Checkpoint, VariantsHaveTheirOwnNames) {
  const TemporaryFolder folder;
  const auto whole = five_tensors();
  const auto sharded = five_tensors();
  save_checkpoint(folder.path(), "model", whole, 1000, "bf16");
  save_checkpoint(folder.path(), "model", sharded, 120, "fp16");
  EXPECT_EQ(folder.names(), (Names{"model.bf16.safetensors", "model.fp16-00001-of-00002.safetensors",
                                   "model.fp16-00002-of-00002.safetensors", "model.safetensors.index.fp16.json"}));
  expect_holds(Checkpoint::open(folder.path(), "model", "bf16"), whole);
  expect_holds(Checkpoint::open(folder.path(), "model", "fp16"), sharded);
  expect_mentions(refusal<CheckpointError>([&] { Checkpoint::open(folder.path(), "model"); }),
                  {folder.path().string(), "model.safetensors", "model.bf16.safetensors"});
}

TEST(Checkpoint, TheIndexWinsOverASingleFileAndTheRestIsReported) {
  const TemporaryFolder folder;
  const auto old = five_tensors();
  const auto tensors = five_tensors();
  write_safetensors(folder / "diffusion_pytorch_model.safetensors", old);
  write_safetensors(folder / "diffusion_pytorch_model-00001-of-00007.safetensors", old);
  write_safetensors(folder / "mine.safetensors", tensors);
  put_index(folder.path(), {{"a", "mine.safetensors"}});
  const auto checkpoint = Checkpoint::open(folder.path(), kStem);
  expect_holds(checkpoint, tensors);  // "a" alone is in the index; the others are loaded all the same
  EXPECT_EQ(checkpoint.stray_files(),
            (Names{"diffusion_pytorch_model-00001-of-00007.safetensors", "diffusion_pytorch_model.safetensors"}));
}

TEST(Checkpoint, AMissingShardIsNamed) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), kStem, five_tensors(), 80);
  fs::remove(folder / "diffusion_pytorch_model-00002-of-00003.safetensors");
  expect_mentions(refusal<CheckpointError>([&] { Checkpoint::open(folder.path(), kStem); }),
                  {"diffusion_pytorch_model-00002-of-00003.safetensors", "missing", kIndex});
}

TEST(Checkpoint, ShardsWithoutTheirIndexAreRefused) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), kStem, five_tensors(), 80);
  fs::remove(folder / kIndex);
  expect_mentions(refusal<CheckpointError>([&] { Checkpoint::open(folder.path(), kStem); }),
                  {"diffusion_pytorch_model-00001-of-00003.safetensors", kIndex, "not their index"});
}

TEST(Checkpoint, ATensorThatTheIndexPromisesMustBeThere) {
  const TemporaryFolder folder;
  write_safetensors(folder / "s.safetensors", five_tensors());
  put_index(folder.path(), {{"a", "s.safetensors"}, {"x", "s.safetensors"}});
  expect_mentions(refusal<CheckpointError>([&] { Checkpoint::open(folder.path(), kStem); }),
                  {"'x'", "s.safetensors", "missing"});
}

TEST(Checkpoint, OfATensorInTwoShardsTheIndexedOneCounts) {
  const TemporaryFolder folder;
  write_safetensors(folder / "1.safetensors", {{"x", at::full({1}, 1)}, {"y", at::full({1}, 1)}});
  write_safetensors(folder / "2.safetensors", {{"x", at::full({1}, 2)}, {"z", at::full({1}, 2)}});
  put_index(folder.path(), {{"x", "2.safetensors"}, {"y", "1.safetensors"}});
  EXPECT_EQ(Checkpoint::open(folder.path(), kStem).tensor("x").item<float>(), 2);
  put_index(folder.path(), {{"x", "1.safetensors"}, {"z", "2.safetensors"}});
  EXPECT_EQ(Checkpoint::open(folder.path(), kStem).tensor("x").item<float>(), 1);
  put_index(folder.path(), {{"y", "1.safetensors"}, {"z", "2.safetensors"}});
  expect_mentions(refusal<CheckpointError>([&] { Checkpoint::open(folder.path(), kStem); }),
                  {"'x'", "1.safetensors", "2.safetensors"});
}

TEST(Checkpoint, HostileIndicesAreRefused) {
  const TemporaryFolder folder;
  write_safetensors(folder / "s.safetensors", five_tensors());
  const auto message = [&](const std::string& index) {
    put(folder / kIndex, index);
    return refusal<CheckpointError>([&] { Checkpoint::open(folder.path(), kStem); });
  };
  expect_mentions(message(R"({"weight_map":{"a":"../s.safetensors"}})"),
                  {kIndex, "'a'", "../s.safetensors", "same folder"});
  expect_mentions(message(R"({"weight_map":{"a":"/etc/passwd"}})"), {"'/etc/passwd'"});
  expect_mentions(message(R"({"weight_map":{"a":"..\\s.safetensors"}})"), {"'a'", "same folder"});
  expect_mentions(message(R"({"weight_map":{"a":"s.safetensors\u0000"}})"), {"'a'", "same folder"});
  expect_mentions(message(R"({"weight_map":{"a":""}})"), {"'a'", "same folder"});
  expect_mentions(message(R"({"weight_map":{"a":7}})"), {"'a'", "7"});
  expect_mentions(message(R"({"weight_map":{"a":"s.safetensors","a":"s.safetensors"}})"), {"'a'", "twice"});
  expect_mentions(message(R"({"metadata":{}})"), {kIndex, "weight_map"});
  expect_mentions(message("[]"), {kIndex, "weight_map"});
  expect_mentions(message(""), {kIndex, "not JSON"});
  expect_mentions(message(std::string(100'000, '[')), {kIndex, "nested"});
  expect_mentions(message("version https://git-lfs.github.com/spec/v1\noid"), {kIndex, "git-lfs pointer"});
}

TEST(Checkpoint, WhatIsMissingIsSaid) {
  const TemporaryFolder folder;
  expect_mentions(refusal<CheckpointError>([&] { Checkpoint::open(folder / "no", kStem); }), {"no such folder"});
  expect_mentions(refusal<CheckpointError>([&] { Checkpoint::open(folder.path(), kStem); }),
                  {"neither diffusion_pytorch_model.safetensors nor", kIndex});
  put(folder / "diffusion_pytorch_model.safetensors", "version https://git-lfs.github.com/spec/v1\noid");
  expect_mentions(refusal<CheckpointError>([&] { Checkpoint::open(folder.path(), kStem); }), {"git-lfs pointer"});
}

TEST(Checkpoint, OpensOneFileByItsOwnName) {
  const TemporaryFolder folder;
  const auto tensors = five_tensors();
  write_safetensors(folder / "flux1-dev.safetensors", tensors);
  const auto checkpoint = Checkpoint::open_file(folder / "flux1-dev.safetensors");
  expect_holds(checkpoint, tensors);
  EXPECT_EQ(checkpoint.path(), folder / "flux1-dev.safetensors");
  EXPECT_TRUE(checkpoint.stray_files().empty());
}

// What has taken a file's name is another file; what is mapped stays what it is.
TEST(Checkpoint, KnowsTheFilesThatItHasMapped) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), kStem, five_tensors());
  const auto before = Checkpoint::open(folder.path(), kStem);
  const auto identity = before.files_identity();
  EXPECT_EQ(Checkpoint::open(folder.path(), kStem).files_identity(), identity);
  save_checkpoint(folder.path(), kStem, five_tensors());
  EXPECT_EQ(before.files_identity(), identity);
  EXPECT_NE(Checkpoint::open(folder.path(), kStem).files_identity(), identity);
}

at::Tensor narrowed(const at::Tensor& whole, const TensorSlice& slice) {
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : slice.ranges) parts.push_back(whole.narrow(slice.dim, begin, end - begin));
  return at::cat(parts, slice.dim);
}

TEST(Checkpoint, SlicesEqualNarrowAndCatAndAreCounted) {
  const TemporaryFolder folder;
  const auto whole = at::randn({12, 10, 3}).to(at::kBFloat16);
  save_checkpoint(folder.path(), kStem, {{"w", whole}});
  const auto checkpoint = Checkpoint::open(folder.path(), kStem);
  const std::vector<TensorSlice> slices = {
      {0, {{0, 12}}},        {0, {{3, 7}}},          {0, {{0, 2}, {4, 6}, {8, 10}}}, {1, {{0, 5}}},
      {1, {{1, 2}, {6, 9}}}, {1, {{9, 10}, {0, 1}}}, {2, {{0, 1}, {2, 3}}},          {2, {{1, 1}, {0, 3}}},
  };
  int64_t copied = 0;
  for (const auto& slice : slices) {
    const auto part = checkpoint.tensor("w", slice);
    const auto expected = narrowed(whole, slice);
    EXPECT_TRUE(at::equal(part, expected)) << slice.dim << " " << ::testing::PrintToString(slice.ranges);
    EXPECT_TRUE(part.is_contiguous());
    EXPECT_EQ(checkpoint.shape("w", slice), expected.sizes().vec());
    copied += static_cast<int64_t>(expected.nbytes());
    EXPECT_EQ(checkpoint.bytes_copied(), copied);
  }
  EXPECT_EQ(checkpoint.shape("w"), whole.sizes().vec());
  const Checkpoint copy = checkpoint;
  copy.tensor("w", {0, {{0, 1}}});
  EXPECT_EQ(checkpoint.bytes_copied(), copied + 60);
}

TEST(Checkpoint, AnEmptySliceIsAnEmptyTensor) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), kStem, {{"w", at::ones({4, 3})}, {"none", at::ones({0, 3})}});
  const auto checkpoint = Checkpoint::open(folder.path(), kStem);
  EXPECT_EQ(checkpoint.tensor("w", {1, {{2, 2}}}).sizes(), at::IntArrayRef({4, 0}));
  EXPECT_EQ(checkpoint.tensor("w", {0, {}}).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(checkpoint.tensor("none", {1, {{0, 2}}}).sizes(), at::IntArrayRef({0, 2}));
  EXPECT_EQ(checkpoint.bytes_copied(), 0);
}

TEST(Checkpoint, ASliceOutsideTheTensorIsRefused) {
  const TemporaryFolder folder;
  save_checkpoint(folder.path(), kStem, {{"w", at::ones({4, 3})}, {"scalar", at::scalar_tensor(1)}});
  const auto checkpoint = Checkpoint::open(folder.path(), kStem);
  expect_mentions(refusal<ShapeError>([&] {
                    checkpoint.tensor("w", {0, {{0, 1}, {3, 5}}});
                  }),
                  {"[3, 5)", "dimension 0", "'w'", "[4, 3]", "diffusion_pytorch_model"});
  expect_mentions(refusal<ShapeError>([&] { checkpoint.tensor("w", {1, {{-1, 2}}}); }), {"[-1, 2)"});
  expect_mentions(refusal<ShapeError>([&] { checkpoint.shape("w", TensorSlice{1, {{-1, 2}}}); }), {"[-1, 2)"});
  expect_mentions(refusal<ShapeError>([&] { checkpoint.tensor("w", {1, {{2, 1}}}); }), {"[2, 1)"});
  expect_mentions(refusal<ShapeError>([&] { checkpoint.tensor("w", {2, {{0, 1}}}); }), {"dimension 2"});
  expect_mentions(refusal<ShapeError>([&] { checkpoint.tensor("w", {-1, {{0, 1}}}); }), {"dimension -1"});
  expect_mentions(refusal<ShapeError>([&] { checkpoint.tensor("scalar", {0, {{0, 1}}}); }), {"'scalar'"});
  expect_mentions(refusal<CheckpointError>([&] { checkpoint.tensor("v", {0, {{0, 1}}}); }), {"'v'"});
  EXPECT_EQ(checkpoint.bytes_copied(), 0);
}

}  // namespace
}  // namespace pardiff
