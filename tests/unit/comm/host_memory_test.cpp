#include "comm/host_memory.h"

#include <gtest/gtest.h>
#include <pardiff/core/error.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/failure.h"

namespace pardiff::comm {
namespace {

using Claim = HostMemory::Claim;

const std::vector<size_t> kSizes = {5, 4096, 10'000};

std::string bytes_of(const HostMemory::Block& block, size_t count) {
  return std::string(static_cast<const char*>(block.bytes()), count);
}

// Two views of the same blocks, as two processes have them.
class SharedBlocks : public ::testing::Test {
 protected:
  std::shared_ptr<HostMemory> here = HostMemory::create(kSizes, nullptr);
  std::shared_ptr<HostMemory> there = HostMemory::open(here->address(), kSizes, nullptr);

  std::shared_ptr<HostMemory::Block> filled(size_t block, char value) {
    EXPECT_EQ(here->claim(block).claim, Claim::kMine);
    return here->fill(block, std::string(kSizes[block], value).data());
  }
};

TEST_F(SharedBlocks, AreFilledByTheFirstWhoNeedsThem) {
  ASSERT_EQ(here->claim(2).claim, Claim::kMine);
  EXPECT_EQ(there->claim(2).claim, Claim::kTaken);
  const auto own = here->fill(2, std::string(kSizes[2], 'x').data());
  const auto theirs = there->claim(2);
  ASSERT_EQ(theirs.claim, Claim::kReady);
  EXPECT_EQ(bytes_of(*theirs.block, kSizes[2]), std::string(kSizes[2], 'x'));
  EXPECT_EQ(there->claim(0).claim, Claim::kMine);  // each block for itself
}

TEST_F(SharedBlocks, CanBeFilledByAnotherAfterAFailure) {
  ASSERT_EQ(here->claim(0).claim, Claim::kMine);
  here->abandon(0);
  EXPECT_EQ(there->claim(0).claim, Claim::kMine);
}

TEST_F(SharedBlocks, AreWaitedFor) {
  ASSERT_EQ(here->claim(1).claim, Claim::kMine);
  std::shared_ptr<HostMemory::Block> own;
  std::thread filler([&] { own = here->fill(1, std::string(kSizes[1], 'y').data()); });
  there->wait(1);
  const auto theirs = there->claim(1);
  filler.join();
  ASSERT_EQ(theirs.claim, Claim::kReady);
  EXPECT_EQ(bytes_of(*theirs.block, kSizes[1]), std::string(kSizes[1], 'y'));
}

TEST_F(SharedBlocks, KeepWhatOneWritesFromTheOthers) {
  const auto own = filled(1, 'a');
  {
    const auto theirs = there->claim(1).block;
    std::memset(theirs->bytes(), 'b', kSizes[1]);
    EXPECT_EQ(bytes_of(*own, kSizes[1]), std::string(kSizes[1], 'a'));
  }
  EXPECT_EQ(bytes_of(*there->claim(1).block, kSizes[1]), std::string(kSizes[1], 'a'));
}

TEST_F(SharedBlocks, AreGivenBackByTheLastAndFilledAnew) {
  auto own = filled(2, 'a');
  auto theirs = there->claim(2).block;
  own.reset();
  EXPECT_EQ(bytes_of(*theirs, kSizes[2]), std::string(kSizes[2], 'a'));
  theirs.reset();
  EXPECT_EQ(bytes_of(*filled(2, 'b'), kSizes[2]), std::string(kSizes[2], 'b'));
}

TEST_F(SharedBlocks, OutliveTheirMemory) {
  const auto own = filled(0, 'z');
  here.reset();
  there.reset();
  EXPECT_EQ(bytes_of(*own, kSizes[0]), std::string(kSizes[0], 'z'));
}

TEST_F(SharedBlocks, OfOtherSizesAreRefused) {
  const std::vector<size_t> others = {5, 4096, 20'000};
  testing::expect_failure<CommError>([&] { HostMemory::open(here->address(), others, nullptr); }, {"this one expects"});
  testing::expect_failure<CommError>([&] { HostMemory::open("1 9999 9999", kSizes, nullptr); }, {"process 1"});
}

}  // namespace
}  // namespace pardiff::comm
