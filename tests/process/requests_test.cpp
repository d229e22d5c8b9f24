// Many requests, one after the other, on two ranks that stay.
#include <gtest/gtest.h>
#include <malloc.h>
#include <pardiff/core/check.h>
#include <pardiff/pipelines/flux_pipeline.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <random>

#include "support/golden.h"
#include "support/rank_program.h"

namespace pardiff {
namespace {

constexpr int kRequests = 200, kWarmUp = 50, kWindow = 25;
// In float64, where a picture (float32) is one rank's to the bit or nearly so; in float32 denoising amplifies rounding.
constexpr double kTolerance = 1e-7;
constexpr double kMostGrowth = 1.03;

// 16x16 to 160x160 pixels, 1 to 64 text tokens, 0 to 30 words, 1 or 2 steps.
FluxPipelineInputs request(std::mt19937_64& random) {
  const char* const words[] = {"a", "red", "circle", "on", "blue", "background", "large", "star"};
  const auto upto = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  FluxPipelineInputs inputs;
  std::string prompt;
  for (int64_t count = upto(31); count > 0; --count) {
    prompt.append(words[upto(std::size(words))]);
    prompt.push_back(' ');
  }
  inputs.prompt = prompt;
  inputs.height = 16 * (1 + upto(10));
  inputs.width = 16 * (1 + upto(10));
  inputs.num_inference_steps = static_cast<int>(1 + upto(2));
  inputs.guidance_scale = 3.5;
  inputs.max_sequence_length = static_cast<int>(1 + upto(64));
  inputs.seed = upto(1000000);
  return inputs;
}

// What the allocator keeps of freed memory depends on the sizes that came last, and is given back first.
int64_t resident_bytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double mean(const std::vector<int64_t>& values, int begin, int end) {
  double sum = 0;
  for (int i = begin; i < end; ++i) sum += static_cast<double>(values[static_cast<size_t>(i)]);
  return sum / (end - begin);
}

FluxPipeline load(World& world) {
  return FluxPipeline::from_pretrained(testing::model_path("flux-shapes"), world,
                                       {.dtype = at::kDouble, .keep_loaded = true});
}

// Ulysses Anything and Ring Anything take turns on one pipeline; rank 0 makes every picture alone too.
void run_requests(World& world) {
  World alone({.device = "cpu", .threads = 1});
  auto shared = load(world), whole = load(alone);
  std::mt19937_64 random(20240);
  std::vector<int64_t> resident;
  double largest = 0;
  for (int i = 0; i < kRequests; ++i) {
    const auto inputs = request(random);
    const auto config = i % 2 == 0 ? ContextParallelConfig{.ulysses_degree = 2, .ulysses_anything = true}
                                   : ContextParallelConfig{.ring_degree = 2, .ring_anything = true};
    shared.transformer()->enable_parallelism(config, world);
    const auto image = shared.generate(inputs).image;
    shared.transformer()->disable_parallelism();
    if (world.rank() == 0) {
      const double error = testing::absolute_error(image, whole.generate(inputs).image);
      largest = std::max(largest, error);
      check<Error>(error <= kTolerance, "request ", i, " (", *inputs.height, "x", *inputs.width, ", ",
                   inputs.max_sequence_length, " text tokens): error ", error);
    }
    resident.push_back(resident_bytes());
  }
  const double early = mean(resident, kWarmUp, kWarmUp + kWindow),
               late = mean(resident, kRequests - kWindow, kRequests);
  std::cout << text_of("rank ", world.rank(), ": largest error ", largest, ", resident ", early / 1e6, " MB, then ",
                       late / 1e6, " MB\n")
            << std::flush;
  check<Error>(late <= early * kMostGrowth, "rank ", world.rank(), " grew from ", early, " to ", late, " bytes");
}

const testing::RankPrograms kPrograms = {{"requests", run_requests}};

TEST(Requests, FullOfAnySizeGiveThePictureOfOneRankInLevelMemory) { testing::expect_ranks_succeed(2, "requests"); }

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  return pardiff::testing::run_tests_or_rank(argc, argv, pardiff::kPrograms,
                                             {.device = "cpu", .threads = 1, .timeout_s = 120});
}
