// Ranks of one host that need the same copies of weights, in another dtype or as a slice, have them once.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/core/check.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/flux_transformer.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "models/weights_on_demand.h"
#include "pipelines/part_loading.h"
#include "support/golden.h"
#include "support/rank_program.h"

namespace pardiff {
namespace {

constexpr int64_t kPage = 4096;

std::filesystem::path folder() { return std::filesystem::path(testing::model_path("flux-shapes")) / "transformer"; }

PartFiles files() { return open_part(folder(), "diffusion_pytorch_model", ""); }

FluxTransformer2DModel blank() {
  return FluxTransformer2DModel(FluxTransformerConfig::from_file(files().config), kPlaceholders);
}

// In float64, which the files are not.
FluxTransformer2DModel loaded(World& world, const std::optional<ParallelConfig>& parallel) {
  auto model = blank();
  fill_part(*model, files().checkpoint, model->load_options(at::kDouble), world, parallel);
  return model;
}

// Bytes of this process's shared weights that are in memory, each page divided by those who have it.
int64_t proportional_bytes() {
  std::ifstream maps("/proc/self/smaps");
  int64_t kilobytes = 0;
  bool is_weights = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos)
      is_weights = line.find("pardiff-weights") != std::string::npos;
    else if (line.find('-') < line.find(' '))
      is_weights = false;
    if (is_weights && line.starts_with("Pss:")) kilobytes += std::stoll(line.substr(4));
  }
  return kilobytes * 1024;
}

int64_t sum_over_ranks(World& world, int64_t value) {
  const auto sum = at::full({1}, value, at::kLong);
  all_reduce(sum, world.host_group()).wait();
  return sum.item<int64_t>();
}

void check_equal(const FluxTransformer2DModel& model, const FluxTransformer2DModel& expected,
                 const std::map<std::string, TensorSlice>& slices) {
  const auto theirs = expected->named_parameters();
  for (const auto& item : model->named_parameters()) {
    auto whole = theirs[item.key()].detach();
    const auto slice = slices.find(item.key());
    if (slice != slices.end()) {
      std::vector<at::Tensor> parts;
      for (const auto& [begin, end] : slice->second.ranges) {
        parts.push_back(whole.narrow(slice->second.dim, begin, end - begin));
      }
      whole = at::cat(parts, slice->second.dim);
    }
    check<Error>(at::equal(item.value(), whole), item.key(), " differs");
    check<Error>(model->weights_on_demand()->is_shared(item.key(), item.value()), item.key(), " is not shared");
  }
}

// Bytes of a model's own copy, and of the last pages of its blocks.
int64_t most_bytes(const FluxTransformer2DModel& model) {
  int64_t bytes = 0;
  for (const auto& parameter : model->parameters()) bytes += static_cast<int64_t>(parameter.nbytes()) + kPage;
  return bytes;
}

void context_ranks(World& world) {
  const ParallelConfig parallel{.context_parallel_config = ContextParallelConfig{.ulysses_degree = world.size()}};
  const auto expected = loaded(world, std::nullopt);
  auto model = loaded(world, parallel);
  check_equal(model, expected, {});
  barrier(world.host_group());
  const auto bytes = sum_over_ranks(world, proportional_bytes());
  check<Error>(bytes > present_bytes(*model) / 2 && bytes <= most_bytes(model), bytes, " bytes of pages for ",
               most_bytes(model), " of weights");
  barrier(world.host_group());
  // What one rank trains is its own.
  const at::NoGradGuard no_grad;
  if (world.rank() == 1) {
    for (auto& parameter : model->parameters()) parameter.add_(1);
  }
  barrier(world.host_group());
  if (world.rank() == 0) check_equal(model, expected, {});
  // The last to let go gives the memory back, and the next loading starts anew.
  model = blank();
  barrier(world.host_group());
  check<Error>(sum_over_ranks(world, proportional_bytes()) == 0, "weights of a model that is gone are still there");
  check_equal(loaded(world, parallel), expected, {});
}

// Each slice is on two ranks.
void tensor_and_context_ranks(World& world) {
  const auto expected = loaded(world, std::nullopt);
  auto model = loaded(world, ParallelConfig{.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2},
                                            .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}});
  auto whole = blank();
  check_equal(model, expected,
              tensor_parallel_slices(*whole, whole->tensor_parallel_plan(), 2, model->mesh()->index("tp")));
  barrier(world.host_group());
  const auto bytes = sum_over_ranks(world, proportional_bytes());
  check<Error>(bytes <= 2 * most_bytes(model), bytes, " bytes of pages for ", most_bytes(model),
               " on each of two ranks");
  barrier(world.host_group());
}

// Who wants no shared memory has copies of its own.
void own_copies(World& world) {
  const auto model =
      loaded(world, ParallelConfig{.context_parallel_config = ContextParallelConfig{.ulysses_degree = world.size()}});
  check<Error>(proportional_bytes() == 0, "weights are shared");
  check<Error>(parameter_bytes(*model, nullptr).private_bytes == present_bytes(*model), "weights are not its own");
}

const testing::RankPrograms kPrograms = {{"context ranks", context_ranks},
                                         {"tensor and context ranks", tensor_and_context_ranks},
                                         {"own copies", own_copies}};

TEST(SharedWeights, OfContextRanksAreInMemoryOnce) {
  testing::expect_ranks_succeed(2, "context ranks");
  testing::expect_ranks_succeed(4, "context ranks");
}

TEST(SharedWeights, OfTensorRanksAreInMemoryOncePerSlice) {
  testing::expect_ranks_succeed(4, "tensor and context ranks");
}

TEST(SharedWeights, AreNotSharedOverGloo) { testing::expect_ranks_succeed(2, "own copies", "gloo"); }

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  return pardiff::testing::run_tests_or_rank(argc, argv, pardiff::kPrograms,
                                             {.device = "cpu", .threads = 1, .timeout_s = 60});
}
