// Ranks as processes over Gloo.
#include <gtest/gtest.h>
#include <pardiff/core/check.h>

#include "distributed/sweep_problems.h"
#include "support/collective_checks.h"
#include "support/rank_program.h"

namespace pardiff {
namespace {

// Each problem in one way of the registry; the ways take turns.
size_t sweep(World& world, const std::vector<testing::AttentionProblem>& problems) {
  size_t cases = 0;
  const auto failures = testing::sweep(
      world, testing::solve_all(problems),
      [](size_t problem, size_t way, size_t ways) { return problem % ways == way; }, cases);
  check<Error>(failures.empty(), joined(failures, "\n"));
  return cases;
}

void short_run(World& world) {
  testing::check_collectives(world);
  testing::check_overlapping_operations(world);
  testing::check_counts(world);
  sweep(world, testing::sampled_problems(60, 77 + world.size()));
}

// With four numbers of ranks, 2,000 sampled cases and the corners.
void long_run(World& world) {
  const size_t cases = sweep(world, testing::sampled_problems(500, 99 + world.size()));
  check<Error>(cases == 500, "only ", cases, " problems were taken");
  sweep(world, testing::edge_problems());
}

const testing::RankPrograms kPrograms = {{"short run", short_run}, {"long run", long_run}};

class Gloo : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Gloo, ::testing::Values(2, 3, 4), ::testing::PrintToStringParamName());

// Even, uneven and empty messages, waits in any order, calls and bytes, and a sample of attention.
TEST_P(Gloo, MovesCountsAndSharesExactly) { testing::expect_ranks_succeed(GetParam(), "short run"); }

class FullGloo : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FullGloo, ::testing::Values(2, 3, 4, 6), ::testing::PrintToStringParamName());

TEST_P(FullGloo, SharesAttentionExactly) { testing::expect_ranks_succeed(GetParam(), "long run"); }

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  return pardiff::testing::run_tests_or_rank(argc, argv, pardiff::kPrograms,
                                             {.device = "cpu", .threads = 1, .timeout_s = 60});
}
