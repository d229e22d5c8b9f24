#include "io/mapped_reading.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/checkpoint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "support/failure.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;
using testing::expect_mentions;
using testing::refusal;
using testing::TemporaryFolder;

constexpr int64_t kRows = 1000;  // of 4,000 bytes

class ShrinkingFile : public ::testing::Test {
 protected:
  void SetUp() override {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    write_safetensors(path_, {{"w", weight_}});
  }
  std::string message_of_last_rows(const Checkpoint& checkpoint) const {
    return refusal<CheckpointError>([&] { checkpoint.tensor("w", {0, {{kRows - 10, kRows}}}); });
  }

  TemporaryFolder folder_;
  fs::path path_ = folder_ / "shrinking.safetensors";
  at::Tensor weight_ = at::arange(kRows * 1000, at::kFloat).view({kRows, 1000});
};

TEST_F(ShrinkingFile, ASliceThatIsGoneIsAnErrorWithTheFilesName) {
  const auto checkpoint = Checkpoint::open_file(path_);
  EXPECT_TRUE(at::equal(checkpoint.tensor("w", {0, {{3, 4}}}), weight_.narrow(0, 3, 1)));
  fs::resize_file(path_, 10'000);
  expect_mentions(message_of_last_rows(checkpoint), {"shrinking.safetensors", "4000", "has 10000 now", "Restore it"});
  expect_mentions(message_of_last_rows(checkpoint), {"shrinking.safetensors"});  // also once the pages are zeros
}

// The end of a page that a file has only in part reads as zeros, without any bus error.
TEST_F(ShrinkingFile, SoIsOneWhoseLastFewBytesAreGone) {
  const auto checkpoint = Checkpoint::open_file(path_);
  fs::resize_file(path_, fs::file_size(path_) - 4);
  expect_mentions(message_of_last_rows(checkpoint), {"shrinking.safetensors", "bytes when it was opened"});
}

TEST_F(ShrinkingFile, AFileThatIsWrittenToIsAnErrorToo) {
  const auto checkpoint = Checkpoint::open_file(path_);
  std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary).seekp(1000).put('x');
  const timespec later[2] = {{2'000'000'000, 0}, {2'000'000'000, 0}};  // a clock may not tick between two writes
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), later, 0), 0);
  expect_mentions(message_of_last_rows(checkpoint), {"shrinking.safetensors", "written to after it had been opened"});
}

TEST_F(ShrinkingFile, AFileThatIsReplacedOrRemovedStaysWhatItWas) {
  const auto checkpoint = Checkpoint::open_file(path_);
  write_safetensors(path_, {{"w", at::zeros({1})}});
  EXPECT_TRUE(at::equal(checkpoint.tensor("w", {0, {{kRows - 1, kRows}}}), weight_.narrow(0, kRows - 1, 1)));
  fs::remove(path_);
  EXPECT_TRUE(at::equal(checkpoint.tensor("w", {0, {{5, 6}}}), weight_.narrow(0, 5, 1)));
}

TEST_F(ShrinkingFile, IsForgottenWhenItIsClosed) {
  write_safetensors(folder_ / "other.safetensors", {{"w", weight_}});
  const auto other = Checkpoint::open_file(folder_ / "other.safetensors");
  {
    const auto checkpoint = Checkpoint::open_file(path_);
    fs::resize_file(path_, 10'000);
    message_of_last_rows(checkpoint);
  }
  EXPECT_TRUE(at::equal(other.tensor("w", {0, {{5, 6}}}), weight_.narrow(0, 5, 1)));
}

TEST_F(ShrinkingFile, SavingFromItLeavesNothingBehind) {
  const auto checkpoint = Checkpoint::open_file(path_);
  fs::resize_file(path_, 10'000);
  expect_mentions(refusal<CheckpointError>([&] {
                    write_safetensors(folder_ / "copy.safetensors", {{"w", checkpoint.tensor("w")}});
                  }),
                  {"shrinking.safetensors"});
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"shrinking.safetensors"});
}

TEST_F(ShrinkingFile, ATensorThatIsReadDirectlyEndsTheProcessWithAMessage) {
  const auto whole = Checkpoint::open_file(path_).tensor("w");
  EXPECT_EXIT(
      {
        fs::resize_file(path_, 10'000);
        std::_Exit(whole.sum().item<float>() > 0 ? 10 : 11);
      },
      ::testing::ExitedWithCode(1), "pardiff: error: cannot read .*shrinking.safetensors: it became shorter");
}

TEST_F(ShrinkingFile, OthersBusErrorsEndTheProcessAsEver) {
  const auto checkpoint = Checkpoint::open_file(path_);
  const auto other = folder_ / "other";
  testing::put(other, std::string(100'000, 'x'));
  EXPECT_EXIT(
      {
        const int file = ::open(other.c_str(), O_RDONLY);
        const auto* bytes = static_cast<const volatile char*>(::mmap(nullptr, 100'000, PROT_READ, MAP_SHARED, file, 0));
        fs::resize_file(other, 10);
        const MappedReading reading;
        std::_Exit(bytes[90'000]);
      },
      ::testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(::raise(SIGBUS), ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace pardiff
