#include <fcntl.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/atomic_file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <future>

#include "support/failure.h"
#include "support/temporary_folder.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;
using testing::content_of;
using testing::expect_mentions;
using testing::put;
using testing::refusal;
using testing::TemporaryFolder;
using Names = std::vector<std::string>;

TEST(AtomicFile, AppearsOnlyOnCommit) {
  const TemporaryFolder folder;
  put(folder / "f", "old");
  {
    AtomicFile file(folder / "f");
    file.write("new", 3);
    EXPECT_EQ(content_of(folder / "f"), "old");
    file.commit();
  }
  EXPECT_EQ(content_of(folder / "f"), "new");
  EXPECT_EQ(folder.names(), Names{"f"});
}

TEST(AtomicFile, LeavesNothingBehindWithoutCommit) {
  const TemporaryFolder folder;
  put(folder / "f", "old");
  {
    AtomicFile file(folder / "f");
    file.write("new", 3);
    AtomicFile moved(std::move(file));
    moved.write("er", 2);
  }
  { AtomicFile never(folder / "g"); }
  EXPECT_EQ(folder.names(), Names{"f"});
  EXPECT_EQ(content_of(folder / "f"), "old");
}

TEST(AtomicFile, AMovedFileCanStillBeCommitted) {
  const TemporaryFolder folder;
  std::vector<AtomicFile> files;
  for (const char* name : {"a", "b", "c"}) {
    files.emplace_back(folder / name);
    files.back().write(name, 1);
  }
  for (auto& file : files) file.commit();
  EXPECT_EQ(folder.names(), (Names{"a", "b", "c"}));
  EXPECT_EQ(content_of(folder / "b"), "b");
}

// A full disk, in effect: the system refuses to let the file grow.
TEST(AtomicFile, AFailedWriteKeepsTheOldFile) {
  const TemporaryFolder folder;
  put(folder / "f", "old");
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto message = refusal<CheckpointError>([&] { write_text_file(folder / "f", std::string(2000, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  expect_mentions(message, {(folder / "f").string(), "File too large"});
  EXPECT_EQ(folder.names(), Names{"f"});
  EXPECT_EQ(content_of(folder / "f"), "old");
}

TEST(AtomicFile, HasTheRightsOfAnOrdinaryNewFile) {
  const TemporaryFolder folder;
  put(folder / "ordinary", "");
  write_text_file(folder / "f", "x");
  EXPECT_EQ(fs::status(folder / "f").permissions(), fs::status(folder / "ordinary").permissions());
}

TEST(AtomicFile, WritesThroughSymbolicLinks) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "real");
  fs::create_symlink("real/f", folder / "link");
  write_text_file(folder / "link", "1");
  write_text_file(folder / "link", "2");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(content_of(folder / "real/f"), "2");
}

TEST(AtomicFile, WritesDevicesAndPipesDirectly) {
  const TemporaryFolder folder;
  write_text_file("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  AtomicFile::check_writable(folder / "pipe");  // without waiting for a reader
  auto reading = std::async(std::launch::async, [&] { return content_of(folder / "pipe"); });
  write_text_file(folder / "pipe", "through");
  EXPECT_EQ(reading.get(), "through");
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
}

TEST(AtomicFile, SaysWhyAPathCannotBeWritten) {
  const TemporaryFolder folder;
  put(folder / "f", "");
  expect_mentions(refusal<CheckpointError>([&] { AtomicFile::check_writable(folder / "no/x.png"); }),
                  {(folder / "no/x.png").string(), "does not exist"});
  expect_mentions(refusal<CheckpointError>([&] { AtomicFile::check_writable(folder / "f/x.png"); }),
                  {"Not a directory"});
  expect_mentions(refusal<CheckpointError>([&] { AtomicFile::check_writable(folder.path()); }), {"is a folder"});
  expect_mentions(refusal<CheckpointError>([&] { AtomicFile::check_writable(""); }), {"Give the path of a file"});
  expect_mentions(refusal<CheckpointError>([&] { AtomicFile::check_writable("/dev/no-such-device"); }),
                  {"/dev/no-such-device: No such file or directory. Give another path."});
  expect_mentions(refusal<CheckpointError>([&] { AtomicFile::check_writable(folder / std::string(256, 'n')); }),
                  {"File name too long"});
  fs::create_symlink("circle", folder / "circle");
  expect_mentions(refusal<CheckpointError>([&] { AtomicFile::check_writable(folder / "circle"); }),
                  {"Too many levels of symbolic links"});
  AtomicFile::check_writable(folder / "fine.png");
  EXPECT_EQ(folder.names(), (Names{"circle", "f"}));
}

TEST(AtomicFile, TakesTheLongestNameThatTheFileSystemTakes) {
  const TemporaryFolder folder;
  const std::string name(255, 'n');
  AtomicFile::check_writable(folder / name);
  write_text_file(folder / name, "x");
  EXPECT_EQ(folder.names(), Names{name});
}

TEST(AtomicFile, WritesToTheSharedMemoryFolderAsToAnyOther) {
  const fs::path file = "/dev/shm/pardiff-atomic-file-test-" + std::to_string(::getpid());
  AtomicFile::check_writable(file);
  write_text_file(file, "x");
  EXPECT_EQ(content_of(file), "x");
  fs::remove(file);
}

// Not even root may create files in /sys.
TEST(AtomicFile, AFolderWithoutWriteRightsIsFoundBeforehand) {
  expect_mentions(refusal<CheckpointError>([] { AtomicFile::check_writable("/sys/pardiff.png"); }),
                  {"cannot write /sys/pardiff.png: "});
  EXPECT_FALSE(fs::exists("/sys/pardiff.png"));
}

TEST(AtomicFile, WritesToTheCurrentFolder) {
  const TemporaryFolder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  write_text_file("plain", "x");
  fs::current_path(before);
  EXPECT_EQ(content_of(folder / "plain"), "x");
}

}  // namespace
}  // namespace pardiff
