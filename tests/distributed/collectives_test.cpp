#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/error.h>

#include <atomic>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/backends/gloo.h"
#include "comm/backends/nccl.h"
#include "comm/backends/staged.h"
#include "support/collective_checks.h"
#include "support/failure.h"
#include "support/test_device.h"

namespace pardiff {
namespace {

using testing::expect_failure;

const WorldOptions kOptions{.device = testing::test_device(), .timeout_s = 20};

class Threads : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Threads, ::testing::Values(2, 3, 4, 6), ::testing::PrintToStringParamName());

TEST_P(Threads, MoveEvenUnevenAndEmptyMessages) { run_as_threads(GetParam(), testing::check_collectives, kOptions); }
TEST_P(Threads, MayBeWaitedForInAnyOrder) {
  run_as_threads(GetParam(), testing::check_overlapping_operations, kOptions);
}
TEST_P(Threads, CountCallsAndBytes) { run_as_threads(GetParam(), testing::check_counts, kOptions); }

// Host memory stands in for a device's; what a wait copies back is the same. The inner group outlives the staged one.
TEST_P(Threads, MoveMessagesThroughHostMemory) {
  run_as_threads(
      GetParam(),
      [](World& world) {
        const std::shared_ptr<comm::GroupBackend> inner(&world.host_group().backend(), [](auto*) {});
        const ProcessGroup staged("staged", comm::stage_through_host(inner), nullptr);
        testing::check_group(staged, world.device());
        const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
        const auto kind = at::TensorOptions().device(world.device());
        const auto sent = at::full({3}, 1.0 * world.rank(), kind), received = at::full({3}, -1.0, kind);
        auto pending = hop(sent, next, received, previous, staged);
        sent.fill_(99);  // what is under way has been copied
        EXPECT_TRUE(at::equal(received, at::full({3}, -1.0, kind)));
        pending.wait();
        EXPECT_TRUE(at::equal(received, at::full({3}, 1.0 * previous, kind)));
      },
      kOptions);
}

// Gloo on a CPU, NCCL on a GPU.
TEST(OneRankTransport, RunsEveryCollective) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const World world({.device = testing::test_device()});
  const auto limit = std::chrono::seconds(20);
  const auto backend = world.device().is_cuda() ? comm::make_nccl_group(store, 0, 1, world.device().index(), limit)
                                                : comm::make_gloo_group(store, 0, 1, limit, /*one_host=*/true);
  EXPECT_EQ(backend->transport(), world.device().is_cuda() ? "nccl" : "gloo");
  testing::check_one_rank(*backend, world.device());
}

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
