#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/error.h>

#include <atomic>
#include <thread>

#include "support/collective_checks.h"
#include "support/failure.h"

namespace pardiff {
namespace {

using testing::expect_failure;

const WorldOptions kOptions{.device = "cpu", .timeout_s = 20};

class Threads : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Threads, ::testing::Values(2, 3, 4, 6), ::testing::PrintToStringParamName());

TEST_P(Threads, MoveEvenUnevenAndEmptyMessages) { run_as_threads(GetParam(), testing::check_collectives, kOptions); }
TEST_P(Threads, MayBeWaitedForInAnyOrder) {
  run_as_threads(GetParam(), testing::check_overlapping_operations, kOptions);
}
TEST_P(Threads, CountCallsAndBytes) { run_as_threads(GetParam(), testing::check_counts, kOptions); }

TEST(RanksAsThreads, TellTheFirstErrorOfAnyRankAndLeaveNoneWaiting) {
  std::atomic<int> ended = 0;
  struct Count {
    std::atomic<int>& count;
    ~Count() { ++count; }
  };
  expect_failure<ShapeError>(
      [&] {
        run_as_threads(
            4,
            [&](World& world) {
              const Count count{ended};
              if (world.rank() == 2) throw ShapeError("rank 2 cannot go on.");
              barrier(world.group());
            },
            kOptions);
      },
      {"rank 2 cannot go on."});
  EXPECT_EQ(ended, 4);
}

TEST(RanksAsThreads, GiveUpOnARankThatIsLate) {
  expect_failure<CommError>(
      [&] {
        run_as_threads(2,
                       [&](World& world) {
                         if (world.rank() == 0) barrier(world.group());
                       },
                       {.device = "cpu", .timeout_s = 1});
      },
      {"waited 1000 ms for rank 1"});
}

TEST(World, NamesTheRanksAndTheFieldThatDisagree) {
  expect_failure<CommError>(
      [&] {
        run_as_threads(
            4, [&](World& world) { world.agree("the seed", world.rank() % 3 == 1 ? "2" : "1"); }, kOptions);
      },
      {"disagree on the seed", "rank 0 has '1'", "rank 1 has '2'"});
}

TEST(World, SendsRank0sValueToAll) {
  run_as_threads(
      3,
      [](World& world) {
        EXPECT_EQ(world.from_rank_0(100 + world.rank()), 100);
        EXPECT_EQ(world.text_from_rank_0("from " + std::to_string(world.rank())), "from 0");
        EXPECT_EQ(world.texts_of_all(std::to_string(world.rank())), (std::vector<std::string>{"0", "1", "2"}));
      },
      kOptions);
}

TEST(World, GivesTheSameGroupForTheSameRanks) {
  run_as_threads(
      4,
      [](World& world) {
        const std::vector<int> pair = world.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
        EXPECT_EQ(&world.group_of(pair).backend(), &world.group_of(pair).backend());
        EXPECT_EQ(&world.group_of({0, 1, 2, 3}).backend(), &world.group().backend());
        const std::vector<int> others = world.rank() < 2 ? std::vector<int>{2, 3} : std::vector<int>{0, 1};
        EXPECT_THROW(world.group_of(others), ConfigError);
      },
      kOptions);
}

}  // namespace
}  // namespace pardiff
