#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/error.h>

#include "support/failure.h"

namespace pardiff {
namespace {

using testing::expect_failure;

TEST(CommunicationCounter, AddsCallsAndBytesByOperation) {
  CommunicationCounter counter;
  counter.add("send", 10);
  const auto before = counter.counts();
  counter.add("send", 5);
  counter.add("all_reduce", 0);
  const auto between = difference(counter.counts(), before);
  EXPECT_EQ(between.size(), 2u);
  EXPECT_EQ(between.at("send").calls, 1);
  EXPECT_EQ(between.at("send").bytes_sent, 5);
  EXPECT_EQ(between.at("all_reduce").calls, 1);
  EXPECT_EQ(counter.counts().at("send").bytes_sent, 15);
  EXPECT_TRUE(difference(before, before).empty());
}

TEST(ProcessGroup, OfOneRankIsTheIdentity) {
  const ProcessGroup alone;
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.transport(), "none");
  const auto input = at::arange(6, at::kFloat).view({2, 3});
  auto output = at::zeros({2, 3});
  all_to_all(output, input, {6}, {6}, alone).wait();
  EXPECT_TRUE(at::equal(output, input));
  output.zero_();
  all_gather(output, input, {6}, alone).wait();
  EXPECT_TRUE(at::equal(output, input));
  output.zero_();
  reduce_scatter(output, input, {6}, alone).wait();
  EXPECT_TRUE(at::equal(output, input));
  all_reduce(output, alone).wait();
  broadcast(output, 0, alone).wait();
  barrier(alone);
  EXPECT_TRUE(at::equal(output, input));
}

TEST(ProcessGroup, ChecksCountsAgainstTensorsBeforeAnythingMoves) {
  const ProcessGroup alone;
  const auto six = at::zeros({6}), strided = at::zeros({3, 2}).transpose(0, 1);
  expect_failure<ShapeError>(
      [&] {
        all_to_all(six, six, {6}, {3, 3}, alone).wait();
      },
      {"all_to_all", "2 counts", "of 1"});
  expect_failure<ShapeError>([&] { all_to_all(six, six, {6}, {5}, alone).wait(); }, {"input", "[6]", "5 contiguous"});
  expect_failure<ShapeError>([&] { all_to_all(six, strided, {6}, {6}, alone).wait(); }, {"input", "contiguous"});
  expect_failure<ShapeError>([&] { all_gather(six, six, {7}, alone).wait(); }, {"all_gather", "7 contiguous"});
  expect_failure<ShapeError>([&] { reduce_scatter(six, six, {2}, alone).wait(); }, {"reduce_scatter", "2 contiguous"});
  expect_failure<ShapeError>([&] { broadcast(six, 1, alone).wait(); }, {"rank 1", "group of 1"});
}

TEST(Pending, FinishesOnceAndAtTheLatestWhenDestroyed) {
  int finished = 0;
  {
    Pending pending([&] { ++finished; });
    pending.wait();
    pending.wait();
  }
  EXPECT_EQ(finished, 1);
  {
    const Pending pending([&] { ++finished; });
  }
  EXPECT_EQ(finished, 2);
  {
    Pending first([&] { finished += 10; });
    first = Pending([&] { finished += 100; });
    EXPECT_EQ(finished, 12);  // the operation that was replaced is not lost
  }
  EXPECT_EQ(finished, 112);
  Pending moved_from([&] { ++finished; });
  { const Pending moved_to(std::move(moved_from)); }
  EXPECT_EQ(finished, 113);
}

TEST(World, AloneNeedsNobody) {
  World world(WorldOptions{.device = "cpu"});
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.group().size(), 1);
  EXPECT_EQ(world.group_of({0}).size(), 1);
  world.agree("anything", "x");
  EXPECT_EQ(world.from_rank_0(-7), -7);
  EXPECT_EQ(world.texts_of_all("a"), std::vector<std::string>{"a"});
  EXPECT_TRUE(world.counter().counts().empty());
  expect_failure<UsageError>([] { World bad(WorldOptions{.device = "gpu"}); }, {"'gpu'", "auto, cpu or cuda"});
}

TEST(World, TakesTheTransportOfItsDeviceAndRefusesOthersByName) {
  EXPECT_EQ(World(WorldOptions{.device = "cpu", .comm = "gloo"}).size(), 1);
  expect_failure<ConfigError>([] { World bad(WorldOptions{.device = "cpu", .comm = "nccl"}); },
                              {"transport nccl", "device cpu", "--comm shm or gloo"});
  expect_failure<UsageError>([] { World bad(WorldOptions{.device = "cpu", .comm = "mpi"}); },
                             {"'mpi'", "shm, gloo or nccl"});
}

}  // namespace
}  // namespace pardiff
