#include <gtest/gtest.h>
#include <pardiff/comm/world.h>

#include <iostream>
#include <mutex>

#include "distributed/sweep_problems.h"
#include "support/test_device.h"

namespace pardiff {
namespace {

using testing::SolvedProblem;

constexpr int kRankCounts[] = {1, 2, 3, 4, 6};

// Runs the sweep on threads; returns the number of cases.
size_t expect_exact(const std::vector<SolvedProblem>& problems, int ranks, const testing::Takes& takes) {
  std::mutex mutex;
  size_t total = 0;
  run_as_threads(ranks,
                 [&](World& world) {
                   size_t cases = 0;
                   const auto failures = testing::sweep(world, problems, takes, cases);
                   const std::lock_guard lock(mutex);
                   for (const auto& failure : failures) ADD_FAILURE() << failure;
                   if (world.rank() == 0) total = cases;
                 },
                 {.device = testing::test_device(), .timeout_s = 60});
  return total;
}

class AttentionSweep : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AttentionSweep, ::testing::ValuesIn(kRankCounts), ::testing::PrintToStringParamName());

TEST_P(AttentionSweep, EveryEdgeCaseIsExactInEveryMode) {
  static const auto problems = testing::solve_all(testing::edge_problems());
  const auto all = [](size_t, size_t, size_t) { return true; };
  EXPECT_GE(expect_exact(problems, GetParam(), all), problems.size());
}

TEST_P(AttentionSweep, EveryCornerIsRightInHalfPrecision) {
  static const auto problems = testing::solve_all(testing::half_precision_problems());
  const auto turns = [](size_t problem, size_t way, size_t ways) { return problem % ways == way; };
  EXPECT_EQ(expect_exact(problems, GetParam(), turns), problems.size());
}

// The ways take turns: each problem meets two of them.
TEST_P(AttentionSweep, ASampleOfAllSizesIsExact) {
  static const auto problems = testing::solve_all(testing::sampled_problems(600, 2024));
  const auto turns = [](size_t problem, size_t way, size_t ways) {
    return problem % ways == way || (problem * 7 + 3) % ways == way;
  };
  EXPECT_GE(expect_exact(problems, GetParam(), turns), problems.size());
}

class FullAttentionSweep : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ImageTokens, FullAttentionSweep, ::testing::Range(1, 13), ::testing::PrintToStringParamName());

TEST_P(FullAttentionSweep, EverySizeIsExactInEveryMode) {
  const auto problems = testing::solve_all(testing::sweep_problems(GetParam()));
  size_t cases = 0;
  for (const int ranks : kRankCounts) {
    cases += expect_exact(problems, ranks, [](size_t, size_t, size_t) { return true; });
  }
  RecordProperty("cases", static_cast<int>(cases));
  std::cout << cases << " cases\n";
}

}  // namespace
}  // namespace pardiff
