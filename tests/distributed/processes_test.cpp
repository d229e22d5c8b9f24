// Ranks as processes, over each transport of the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>

#include <tuple>

#include "distributed/sweep_problems.h"
#include "support/collective_checks.h"
#include "support/rank_program.h"
#include "support/test_device.h"

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
  sweep(world, testing::half_precision_problems());
}

// Messages several times as long as any buffer between two ranks, all under way at once in both directions.
void long_messages(World& world) {
  const int64_t size = world.size(), count = (int64_t{30} << 20) / 4 + 3, rank = world.rank();
  const auto sent = at::arange(size * count, at::kInt) + rank, received = at::empty({size * count}, at::kInt);
  auto sum = at::full({count}, static_cast<float>(rank + 1));
  const std::vector<int64_t> counts(size, count);
  auto exchange = all_to_all(received, sent, counts, counts, world.group());
  auto reduction = all_reduce(sum, world.group());
  reduction.wait();
  exchange.wait();
  check<Error>(sum.eq(size * (size + 1) / 2).all().item<bool>(), "a long sum is wrong");
  for (int64_t peer = 0; peer < size; ++peer) {
    const auto expected = at::arange(rank * count, (rank + 1) * count, at::kInt) + peer;
    check<Error>(received.narrow(0, peer * count, count).equal(expected), "what rank ", peer, " sent is wrong");
  }
}

// With four numbers of ranks, 2,000 sampled cases and the corners.
void long_run(World& world) {
  const size_t cases = sweep(world, testing::sampled_problems(500, 99 + world.size()));
  check<Error>(cases == 500, "only ", cases, " problems were taken");
  sweep(world, testing::edge_problems());
}

const testing::RankPrograms kPrograms = {
    {"short run", short_run}, {"long run", long_run}, {"long messages", long_messages}};

class Processes : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  static void expect_success(const std::string& program) {
    const auto [ranks, comm] = GetParam();
    testing::expect_ranks_succeed(ranks, program, comm);
  }
};
// The transport, then the ranks.
const auto case_name = [](const ::testing::TestParamInfo<std::tuple<int, const char*>>& info) {
  return text_of(std::get<1>(info.param), std::get<0>(info.param));
};

INSTANTIATE_TEST_SUITE_P(Ranks, Processes,
                         ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values("gloo", "shm")), case_name);

// Even, uneven and empty messages, waits in any order, calls and bytes, and a sample of attention.
TEST_P(Processes, MoveCountAndShareExactly) { expect_success("short run"); }
TEST_P(Processes, MoveLongMessagesBothWaysAtOnce) { expect_success("long messages"); }

class FullProcesses : public Processes {};
INSTANTIATE_TEST_SUITE_P(Ranks, FullProcesses,
                         ::testing::Combine(::testing::Values(2, 3, 4, 6), ::testing::Values("gloo", "shm")),
                         case_name);

TEST_P(FullProcesses, ShareAttentionExactly) { expect_success("long run"); }

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  return pardiff::testing::run_tests_or_rank(
      argc, argv, pardiff::kPrograms, {.device = pardiff::testing::test_device(), .threads = 1, .timeout_s = 60});
}
