#include <gtest/gtest.h>
#include <pardiff/comm/world.h>

#include <mutex>

#include "distributed/sweep_problems.h"

namespace pardiff {
namespace {

using testing::SolvedProblem;

constexpr int kRankCounts[] = {1, 2, 3, 4, 6};

// Runs the sweep on threads; returns the number of cases.
size_t expect_exact(const std::vector<SolvedProblem>& problems, int ranks,
                    const std::function<bool(size_t, size_t)>& takes) {
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
                 {.device = "cpu", .timeout_s = 60});
  return total;
}

bool takes_all(size_t, size_t) { return true; }

class AttentionSweep : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AttentionSweep, ::testing::ValuesIn(kRankCounts), ::testing::PrintToStringParamName());

TEST_P(AttentionSweep, EveryEdgeCaseIsExactInEveryMode) {
  static const auto problems = testing::solve_all(testing::edge_problems());
  EXPECT_GT(expect_exact(problems, GetParam(), takes_all), 0u);
}

// The ways take turns: each problem meets two of them, each way a fixed share of the problems.
TEST_P(AttentionSweep, ASampleOfAllSizesIsExact) {
  static const auto problems = testing::solve_all(testing::sampled_problems(600, 2024));
  const size_t ways = testing::attention_ways(GetParam()).size();
  const auto takes = [&](size_t problem, size_t way) {
    return problem % ways == way || (problem * 7 + 3) % ways == way;
  };
  EXPECT_GT(expect_exact(problems, GetParam(), takes), 100u);
}

}  // namespace
}  // namespace pardiff
