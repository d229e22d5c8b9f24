// The golden pipeline cases on ranks that are processes, in every layout of 2, 3, 4 and 6 of them.
#include <gtest/gtest.h>
#include <pardiff/attention/mode.h>
#include <pardiff/core/check.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include <iostream>

#include "parity/pipeline/golden_run.h"
#include "support/golden.h"
#include "support/rank_program.h"

namespace pardiff {
namespace {

using testing::GoldenRun;

// In float64 every layout gives one rank's picture, which is float32, to the bit or nearly so.
constexpr double kExactTolerance = 1e-7;
constexpr const char* kGolden[] = {"square", "wide", "batch", "true_cfg", "odd_tokens"};
constexpr int64_t kHeads = 4, kPixelsOfAToken = 16;

struct Layout {
  int ring, ulysses, tp;
  bool rotate, ring_anything, ulysses_anything;

  int context_ranks() const { return ring * ulysses; }
  ParallelConfig config() const {
    ParallelConfig config;
    if (context_ranks() > 1) {
      config.context_parallel_config = ContextParallelConfig{.ring_degree = ring,
                                                             .ulysses_degree = ulysses,
                                                             .rotate_method = rotate ? "alltoall" : "allgather",
                                                             .ulysses_anything = ulysses_anything,
                                                             .ring_anything = ring_anything};
    }
    if (tp > 1) config.tensor_parallel_config = TensorParallelConfig{.tp_degree = tp};
    return config;
  }
  std::string name() const {
    return text_of("ring ", ring, " x ulysses ", ulysses, " x tp ", tp, rotate ? "" : ", allgather",
                   ring_anything ? ", ring_anything" : "", ulysses_anything ? ", ulysses_anything" : "");
  }
  // The rules of the documentation, worked out here: lengths that divide by all context ranks, heads by Ulysses.
  bool accepts_heads() const { return ulysses_anything || kHeads / tp % ulysses == 0; }
  bool accepts(const FluxPipelineInputs& inputs) const {
    const int64_t image = *inputs.height / kPixelsOfAToken * (*inputs.width / kPixelsOfAToken);
    const bool lengths_divide = image % context_ranks() == 0 && inputs.max_sequence_length % context_ranks() == 0;
    return (ring_anything || ulysses_anything || lengths_divide) && accepts_heads();
  }
};

// Both rotate methods where there is a ring, and each flag where its degree is more than 1.
void add_flags(std::vector<Layout>& all, int ring, int ulysses, int tp) {
  for (const bool rotate : {true, false}) {
    for (const bool ring_anything : {false, true}) {
      for (const bool ulysses_anything : {false, true}) {
        if ((ring == 1 && (ring_anything || !rotate)) || (ulysses == 1 && ulysses_anything)) continue;
        const Layout layout{ring, ulysses, tp, rotate, ring_anything, ulysses_anything};
        if (layout.accepts_heads()) all.push_back(layout);
      }
    }
  }
}

std::vector<Layout> layouts_of(int ranks) {
  std::vector<Layout> all;
  for (int ring = 1; ring <= ranks; ++ring) {
    for (int ulysses = 1; ring * ulysses <= ranks; ++ulysses) {
      const int tp = ranks / (ring * ulysses);
      if (ring * ulysses * tp == ranks && kHeads % tp == 0) add_flags(all, ring, ulysses, tp);
    }
  }
  return all;
}

using Pictures = std::map<std::string, at::Tensor>;

// The pictures of one rank, made by this process alone.
Pictures pictures_of_one_rank(at::ScalarType dtype) {
  World alone({.device = "cpu", .threads = 1});
  auto pipeline =
      FluxPipeline::from_pretrained(testing::model_path("flux-shapes"), alone, {.dtype = dtype, .keep_loaded = true});
  Pictures pictures;
  for (const char* golden : kGolden) pictures[golden] = pipeline.generate(GoldenRun(golden).inputs()).image;
  return pictures;
}

// What has been compared so far; rank 0 alone has pictures.
struct Comparison {
  std::vector<std::string> failures;
  int pictures = 0;
  double largest = 0;

  void add(const char* golden, const Layout& layout, at::ScalarType dtype, const at::Tensor& actual,
           const at::Tensor& expected) {
    const double error = testing::absolute_error(actual, expected);
    largest = std::max(largest, error);
    if (!(error <= (dtype == at::kDouble ? kExactTolerance : testing::picture_tolerance(golden)))) {
      failures.push_back(text_of(golden, " in ", layout.name(), ", ", dtype, ": error ", error));
    }
  }
};

// Whether a layout, by its number, runs the golden case, by its number among those that the layout accepts.
using Takes = std::function<bool(size_t layout, size_t golden)>;

std::vector<const char*> cases_of(const Layout& layout, size_t number, const Takes& takes) {
  std::vector<const char*> cases;
  size_t accepted = 0;
  for (const char* golden : kGolden) {
    if (layout.accepts(GoldenRun(golden).inputs()) && takes(number, accepted++)) cases.push_back(golden);
  }
  return cases;
}

void expect_pictures_of_one_rank(World& world, at::ScalarType dtype, const Takes& takes) {
  Pictures expected;
  if (world.rank() == 0) expected = pictures_of_one_rank(dtype);
  Comparison comparison;
  const auto layouts = layouts_of(world.size());
  for (size_t l = 0; l < layouts.size(); ++l) {
    const auto cases = cases_of(layouts[l], l, takes);
    if (cases.empty()) continue;
    auto pipeline =
        FluxPipeline::from_pretrained(testing::model_path("flux-shapes"), world,
                                      {.dtype = dtype, .parallel_config = layouts[l].config(), .keep_loaded = true});
    for (const char* golden : cases) {
      ++comparison.pictures;
      const auto output = pipeline.generate(GoldenRun(golden).inputs());
      if (world.rank() == 0) comparison.add(golden, layouts[l], dtype, output.image, expected.at(golden));
    }
  }
  check<Error>(comparison.failures.empty(), joined(comparison.failures, "\n"));
  check<Error>(comparison.pictures > 0, "no layout took a case");
  if (world.rank() == 0) {
    std::cout << layouts.size() << " layouts of " << world.size() << " ranks, " << dtype << ", " << comparison.pictures
              << " pictures, largest error " << comparison.largest << std::endl;
  }
}

void every_case(World& world) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    expect_pictures_of_one_rank(world, dtype, [](size_t, size_t) { return true; });
  }
}

// One case in every fifth layout: `odd_tokens`, the last one, where an anything flag is set; else the first.
void sample(World& world) {
  const auto layouts = layouts_of(world.size());
  expect_pictures_of_one_rank(world, at::kDouble, [&](size_t layout, size_t golden) {
    const bool anything = layouts[layout].ring_anything || layouts[layout].ulysses_anything;
    return layout % 5 == 1 && golden == (anything ? std::size(kGolden) - 1 : 0);
  });
}

const testing::RankPrograms kPrograms = {{"sample", sample}, {"every case", every_case}};

class GoldenLayouts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GoldenLayouts, ::testing::Values(2, 3, 4, 6), ::testing::PrintToStringParamName());

TEST_P(GoldenLayouts, ASampleGivesThePictureOfOneRank) { testing::expect_ranks_succeed(GetParam(), "sample"); }
TEST_P(GoldenLayouts, FullEveryCaseGivesThePictureOfOneRank) {
  testing::expect_ranks_succeed(GetParam(), "every case");
}

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  return pardiff::testing::run_tests_or_rank(argc, argv, pardiff::kPrograms,
                                             {.device = "cpu", .threads = 1, .timeout_s = 120});
}
