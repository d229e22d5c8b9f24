// Under tensor parallelism every rank takes its own slices out of the files, and all ranks refuse alike.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/models/save.h>
#include <pardiff/models/t5_encoder.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "pipelines/part_loading.h"
#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;
using testing::on_threads;
using testing::TemporaryFolder;

fs::path shapes() { return fs::path(testing::model_path("flux-shapes")) / "transformer"; }

template <typename Holder>
Holder blank(const fs::path& folder) {
  using Config = std::remove_cvref_t<decltype(std::declval<Holder&>()->config())>;
  return Holder(Config::from_file(ConfigFile::open(folder / "config.json")), kPlaceholders);
}

TEST(ShardedLoading, CopiesNothingButItsOwnSlices) {
  for (const int tp : {2, 4}) {
    on_threads(tp, [&](World& world) {
      const auto files = open_part(shapes(), "diffusion_pytorch_model", "");
      auto model = blank<FluxTransformer2DModel>(shapes());
      const auto slices = tensor_parallel_slices(*model, model->tensor_parallel_plan(), tp, world.rank());
      fill_part(*model, files.checkpoint, model->load_options(), world,
                ParallelConfig{.tensor_parallel_config = TensorParallelConfig{.tp_degree = tp}});
      int64_t share = 0, whole = 0;  // bytes of the parameters that are cut
      for (const auto& parameter : model->named_parameters()) {
        if (!slices.count(parameter.key())) continue;
        share += static_cast<int64_t>(parameter.value().nbytes());
        whole += files.checkpoint.info(parameter.key()).bytes();
      }
      EXPECT_EQ(share * tp, whole);
      EXPECT_EQ(files.checkpoint.bytes_copied(), share);
      // What a rank holds: its share of what is cut, and the rest.
      EXPECT_EQ(parameter_bytes(*model, nullptr).total, share + files.checkpoint.total_bytes() - whole);
      EXPECT_LT(static_cast<double>(files.checkpoint.total_bytes() - whole),
                0.1 * static_cast<double>(files.checkpoint.total_bytes()));
    });
  }
}

// What this process has read from disks so far.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  for (std::string name; file >> name;) {
    int64_t value = 0;
    if (file >> value && name == "read_bytes:") return value;
  }
  return -1;
}

void forget_cached(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  EXPECT_EQ(::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(descriptor);
}

// 100 MB: wide enough for a slice to be many pages, and for one per cent to be many more than the edges of slices.
FluxTransformer2DModel wide(bool allocate) {
  return FluxTransformer2DModel(FluxTransformerConfig{.in_channels = 16,
                                                      .num_layers = 1,
                                                      .num_single_layers = 1,
                                                      .attention_head_dim = 128,
                                                      .num_attention_heads = 8,
                                                      .joint_attention_dim = 64,
                                                      .pooled_projection_dim = 64},
                                nn::ParameterOptions{.dtype = at::kBFloat16, .allocate = allocate});
}

std::map<std::string, TensorSlice> slices_of(FluxTransformer2DModel& model, int tp, int rank) {
  return tensor_parallel_slices(*model, model->tensor_parallel_plan(), tp, rank);
}

// Of a rank: its share of what is cut by rows, and row-parallel weights whole, since they are cut within pages. What is
// not cut stays in the mapping, unread until it is computed with.
int64_t bytes_to_read(int tp, int rank) {
  auto blank = wide(false);
  const auto slices = slices_of(blank, tp, rank);
  int64_t bytes = 0;
  for (const auto& parameter : blank->named_parameters()) {
    const auto found = slices.find(parameter.key());
    if (found == slices.end()) continue;
    bytes += static_cast<int64_t>(parameter.value().nbytes()) / (found->second.dim == 0 ? tp : 1);
  }
  return bytes;
}

void load_as(int tp, int rank, const fs::path& folder) {
  auto model = wide(false);
  auto options = model->load_options();
  options.slices = slices_of(model, tp, rank);
  load_parameters(*model, parameter_source(Checkpoint::open(folder, "model")), options);
}

// Seen from outside, one rank at a time.
TEST(FullShardedLoading, ReadsLittleMoreThanItsShareFromTheDisk) {
  const TemporaryFolder folder;
  {
    const at::NoGradGuard no_grad;
    World one({.device = "cpu"});
    save_parameters(*wide(true), folder.path(), "model", one);
  }
  const auto file = folder / "model.safetensors";
  const auto size = static_cast<int64_t>(fs::file_size(file));
  ASSERT_GT(size, 100'000'000);
  load_as(1, 0, folder.path());  // whatever the program itself has to read the first time
  forget_cached(file);
  const auto before_control = bytes_read();
  testing::content_of(file);
  ASSERT_GE(bytes_read() - before_control, size)
      << folder.path() << " is on no disk whose reading can be seen (a tmpfs?). Set TMPDIR to a folder that is.";

  for (const int tp : {2, 4}) {
    for (int rank = 0; rank < tp; ++rank) {
      const auto expected = static_cast<double>(bytes_to_read(tp, rank));
      forget_cached(file);
      const auto before = bytes_read();
      load_as(tp, rank, folder.path());
      const auto read = static_cast<double>(bytes_read() - before);
      std::cout << "rank " << rank << " of " << tp << " read " << read / expected << " of its share\n";
      EXPECT_LE(read, 1.01 * expected) << "rank " << rank << " of " << tp;
      EXPECT_GE(read, 0.9 * expected) << "was not read from the disk";
    }
  }
}

void expect_no_memory(const torch::nn::Module& model) {
  for (const auto& parameter : model.parameters())
    EXPECT_EQ(parameter.storage().nbytes(), parameter.dtype().itemsize());
}

// What the ranks say who load a part under `config`; one text if they agree. No weight may be read for it.
template <typename Holder>
std::set<std::string> refusals(const fs::path& folder, const std::string& stem, int ranks,
                               const ParallelConfig& config) {
  std::mutex mutex;
  std::set<std::string> messages;
  on_threads(ranks, [&](World& world) {
    const auto files = open_part(folder, stem, "");
    auto model = blank<Holder>(folder);
    const auto message =
        testing::refusal<Error>([&] { fill_part(*model, files.checkpoint, model->load_options(), world, config); });
    EXPECT_EQ(files.checkpoint.bytes_copied(), 0);
    expect_no_memory(*model);
    const std::lock_guard lock(mutex);
    messages.insert(message);
  });
  return messages;
}

void expect_one_text(const std::set<std::string>& messages, const std::vector<std::string>& parts) {
  ASSERT_EQ(messages.size(), 1u);
  testing::expect_mentions(*messages.begin(), parts);
}

ParallelConfig tensor(int degree) { return {.tensor_parallel_config = TensorParallelConfig{.tp_degree = degree}}; }

TEST(ShardedLoading, RefusesADegreeBeforeAWeightIsReadAndWithOneText) {
  expect_one_text(refusals<FluxTransformer2DModel>(shapes(), "diffusion_pytorch_model", 3, tensor(3)),
                  {"tp_degree 3", "4 attention heads", "FluxTransformer2DModel"});
  expect_one_text(refusals<FluxTransformer2DModel>(shapes(), "diffusion_pytorch_model", 2, tensor(3)),
                  {"multiply to 3", "2 ranks"});
}

// Heads that can be shared, and a feed-forward that cannot.
TEST(ShardedLoading, RefusesADegreeThatDoesNotDivideTheFeedForward) {
  const TemporaryFolder folder;
  {
    World one({.device = "cpu"});
    T5EncoderModel model(
        T5Config{.vocab_size = 16, .d_model = 8, .d_kv = 2, .d_ff = 10, .num_layers = 1, .num_heads = 4});
    save_pretrained(*model, folder.path(), one);
  }
  expect_one_text(refusals<T5EncoderModel>(folder.path(), "model", 4, tensor(4)),
                  {"DenseReluDense.wi.weight", "size 10", "by 4"});
}

TEST(ShardedLoading, RefusesAMissingPlannedTensorBeforeAWeightIsReadAndWithOneText) {
  const TemporaryFolder folder;
  const auto source = Checkpoint::open(shapes(), "diffusion_pytorch_model");
  std::vector<NamedTensor> tensors;
  for (const auto& name : source.names()) {
    if (name != "transformer_blocks.0.attn.to_q.weight") tensors.push_back({name, source.tensor(name)});
  }
  save_checkpoint(folder.path(), "diffusion_pytorch_model", tensors);
  fs::copy_file(shapes() / "config.json", folder / "config.json");
  expect_one_text(refusals<FluxTransformer2DModel>(folder.path(), "diffusion_pytorch_model", 2, tensor(2)),
                  {"transformer_blocks.0.attn.to_q.weight", folder.path().string()});
}

// Whoever brings a plan of his own learns of a typo before he needs any weight.
TEST(ShardedLoading, RefusesATypoInAPlanOnShapesAloneAndWithOneText) {
  std::mutex mutex;
  std::set<std::string> messages;
  on_threads(2, [&](World& world) {
    auto model = blank<FluxTransformer2DModel>(shapes());
    auto plan = model->tensor_parallel_plan();
    plan.emplace("transformer_blocks.*.attn.to_qq", "colwise");
    const auto from_slices =
        testing::refusal<ConfigError>([&] { tensor_parallel_slices(*model, plan, 2, world.rank()); });
    const auto from_applying =
        testing::refusal<ConfigError>([&] { apply_tensor_parallel(*model, {.tp_degree = 2}, world, plan); });
    EXPECT_TRUE(world.counter().counts().empty());
    expect_no_memory(*model);
    const std::lock_guard lock(mutex);
    messages.insert({from_slices, from_applying});
  });
  expect_one_text(messages, {"to_qq", "to_q"});
}

}  // namespace
}  // namespace pardiff
