#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/new_folder.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/failure.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;
using testing::expect_failure;
using testing::TemporaryFolder;
using Names = std::vector<std::string>;

TEST(NewFolder, AppearsWholeWhenItIsCommitted) {
  const TemporaryFolder folder;
  {
    NewFolder output(folder / "out");
    testing::put(output.path() / "file", "data");
    EXPECT_FALSE(fs::exists(folder / "out"));
    output.commit();
    EXPECT_EQ(folder.names(), Names{"out"});
  }
  EXPECT_EQ(folder.names("out"), Names{"file"});
}

TEST(NewFolder, LeavesNothingWithoutACommit) {
  const TemporaryFolder folder;
  {
    const NewFolder output(folder / "out");
    testing::put(output.path() / "file", "data");
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(NewFolder, TakesThePlaceOfAnEmptyFolderAndRefusesAFullOne) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "out");
  NewFolder output((folder / "out").string() + "/");
  testing::put(output.path() / "file", "data");
  output.commit();
  EXPECT_EQ(folder.names("out"), Names{"file"});
  expect_failure<CheckpointError>([&] { NewFolder(folder / "out"); }, {(folder / "out").string(), "not empty"});
  expect_failure<CheckpointError>([&] { NewFolder(folder / "nowhere/out"); }, {"nowhere", "does not exist"});
  EXPECT_EQ(folder.names(), Names{"out"});
}

TEST(NewFolder, RemovesWhatAKilledProcessHasLeftOfTheSameTarget) {
  const TemporaryFolder folder;
  for (const char* name : {".out.123.partial", ".other.123.partial", ".out.more.123.partial", ".out.partial"}) {
    fs::create_directories(folder / name / "transformer");
    testing::put(folder / name / "transformer/config.json", "{}");
  }
  NewFolder output(folder / "out");
  output.commit();
  EXPECT_EQ(folder.names(), (Names{".other.123.partial", ".out.more.123.partial", ".out.partial", "out"}));
}

TEST(NewFolder, LeavesThoseAloneThatAreStillBeingFilled) {
  const TemporaryFolder folder;
  NewFolder first(folder / "out");
  testing::put(first.path() / "file", "first");
  {
    const NewFolder second(folder / "out");
    EXPECT_NE(second.path(), first.path());
    EXPECT_TRUE(fs::exists(first.path() / "file"));
  }
  EXPECT_TRUE(fs::exists(first.path() / "file"));
  first.commit();
  EXPECT_EQ(testing::content_of(folder / "out/file"), "first");
}

TEST(NewFolder, SaysHowMuchRoomIsMissing) {
  const TemporaryFolder folder;
  const NewFolder output(folder / "out");
  output.check_room(1);
  expect_failure<CheckpointError>([&] { output.check_room(int64_t{1} << 60); }, {"1152921504606846976 bytes", "free"});
}

}  // namespace
}  // namespace pardiff
