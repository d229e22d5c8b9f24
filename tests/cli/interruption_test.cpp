// What is left when a command that writes a folder is ended from outside.
#include <gtest/gtest.h>
#include <pardiff/io/checkpoint.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "support/golden.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;
using Command = std::vector<std::string>;

// Commands that write for seconds: gigabytes, or hundreds of files that are brought to the disk one by one.
Command init(const fs::path& output) { return {program(), "init", "bench", output}; }
Command convert(const fs::path& output) {
  return {program(), "convert", model_path("flux-shapes"), output, "--max-shard-size", "1KB"};
}
Command convert_on_two_ranks(const fs::path& output) {
  auto command = convert(output);
  command.insert(command.end(), {"--tp-degree", "2"});
  return command;
}

fs::path working_folder(const TemporaryFolder& folder) {
  for (const auto& name : folder.names()) {
    if (name.starts_with(".out.") && name.ends_with(".partial")) return folder / name;
  }
  return {};
}

// Whether the command that was started has begun to fill its folder (with more folders: it is past their creation)
// and has not finished.
bool writes(const TemporaryFolder& folder) {
  for (int waited = 0; waited < 60'000 && !fs::exists(folder / "out"); waited += 2) {
    const auto working = working_folder(folder);
    if (!working.empty() && fs::exists(working / "transformer")) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

struct Ended {
  ChildResult result;
  bool group_is_gone;
};

// A command that got the signal while it wrote. On a busy machine it may have finished first: then once more.
Ended end_while_it_writes(const TemporaryFolder& folder, const Command& command, int signal, bool to_group) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    ChildProcess child(command);
    if (writes(folder)) to_group ? child.send_to_group(signal) : child.send(signal);
    auto result = child.wait();
    if (result.exit_code != 0) return {result, child.group_is_gone()};
    fs::remove_all(folder / "out");
  }
  return {};
}

struct Interruption {
  std::string name;
  Command (*command)(const fs::path& output);
  int signal;
  bool to_group;
  int exit_code;  // -1: ended by the signal itself
};
std::ostream& operator<<(std::ostream& stream, const Interruption& tested) { return stream << tested.name; }

class Interrupted : public ::testing::TestWithParam<Interruption> {};
INSTANTIATE_TEST_SUITE_P(Commands, Interrupted,
                         ::testing::Values(Interruption{"InitByInt", init, SIGINT, true, -1},
                                           Interruption{"InitByTerm", init, SIGTERM, false, -1},
                                           Interruption{"InitByHup", init, SIGHUP, false, -1},
                                           Interruption{"ConvertByInt", convert, SIGINT, true, -1},
                                           Interruption{"ConvertByTerm", convert, SIGTERM, false, -1},
                                           Interruption{"RanksByInt", convert_on_two_ranks, SIGINT, true, 128 + SIGINT},
                                           Interruption{"RanksByTerm", convert_on_two_ranks, SIGTERM, false,
                                                        128 + SIGTERM}),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(Interrupted, LeavesNothing) {
  const auto& tested = GetParam();
  const TemporaryFolder folder;
  const auto [result, group_is_gone] =
      end_while_it_writes(folder, tested.command(folder / "out"), tested.signal, tested.to_group);
  EXPECT_EQ(result.exit_code, tested.exit_code) << result.err;
  EXPECT_EQ(result.signal, tested.exit_code == -1 ? tested.signal : 0);
  EXPECT_TRUE(result.errors().empty()) << result.err;
  EXPECT_TRUE(group_is_gone);
  EXPECT_TRUE(folder.names().empty());
}

TEST(Killed, LeavesWhatTheNextRunReplaces) {
  const TemporaryFolder folder;
  for (const auto command : {init, convert, convert_on_two_ranks}) {
    EXPECT_EQ(end_while_it_writes(folder, command(folder / "out"), SIGKILL, true).result.signal, SIGKILL);
    EXPECT_FALSE(working_folder(folder).empty());
    EXPECT_FALSE(fs::exists(folder / "out"));
  }
  const auto again = run_program({"convert", model_path("flux-shapes"), folder / "out"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(folder.names(), Names{"out"});
  EXPECT_EQ(run_program({"inspect", folder / "out"}).exit_code, 0);
}

TEST(TwoAtOnce, DoNotTakeEachOthersFolderForOneLeftBehind) {
  const TemporaryFolder folder;
  ChildProcess first(init(folder / "out"));
  ASSERT_TRUE(writes(folder)) << first.wait().err;
  first.send(SIGSTOP);
  const auto working = working_folder(folder);
  const auto second = run_program({"convert", model_path("flux-shapes"), folder / "out"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_TRUE(fs::exists(working / "transformer"));
  first.send(SIGTERM);
  first.send(SIGCONT);
  EXPECT_EQ(first.wait().signal, SIGTERM);
  EXPECT_EQ(folder.names(), Names{"out"});
}

}  // namespace
}  // namespace pardiff::testing
