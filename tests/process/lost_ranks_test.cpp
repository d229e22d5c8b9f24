// How a run ends when a rank is killed, stopped, fails, or does something else than the others: with one message, and
// with nothing left.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <set>

#include "support/failure.h"
#include "support/program.h"
#include "support/rank_program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;

// What all processes of a run have said and how they ended.
struct Outcome {
  std::vector<ChildResult> results;

  std::string text() const {
    std::string all;
    for (const auto& result : results) all += result.err;
    return all;
  }
  std::vector<std::string> messages() const {
    std::vector<std::string> all;
    for (const auto& result : results) {
      for (const auto& message : result.errors()) all.push_back(message);
    }
    return all;
  }
};

std::vector<std::string> long_command(const TemporaryFolder& folder, const std::string& comm) {
  auto command =
      generate_command(folder / "picture.png", {"--ring-degree", "2", "--ulysses-degree", "2", "--comm", comm});
  *(std::find(command.begin(), command.end(), "--steps") + 1) = "10000";
  command.insert(command.end(), {"--timeout", "6"});
  return command;
}

bool has_torchrun() {
  static const bool works = fs::exists(PARDIFF_TORCHRUN) && run_child({PARDIFF_TORCHRUN, "--help"}).exit_code == 0;
  return works;
}

enum class Launcher { own, plain, torchrun };

// Four ranks on a long way.
class LongRun {
 public:
  static constexpr int kRanks = 4;

  LongRun(Launcher launcher, const std::string& comm) : launcher_(launcher) {
    auto command = long_command(folder_, comm);
    const auto port = std::to_string(free_port());
    if (launcher == Launcher::torchrun) {
      const std::vector<std::string> torchrun = {PARDIFF_TORCHRUN, "--no-python", "--nproc-per-node", "4",
                                                 "--master-port",  port};
      command.insert(command.begin(), torchrun.begin(), torchrun.end());
    }
    if (launcher != Launcher::plain) {
      processes_.push_back(std::make_unique<ChildProcess>(command));
      return;
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      processes_.push_back(std::make_unique<ChildProcess>(
          command, std::vector<std::string>{"RANK=" + std::to_string(rank), "WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1",
                                            "MASTER_PORT=" + port}));
    }
  }

  ChildProcess& launcher() { return *processes_[0]; }
  bool takes_steps() { return processes_[0]->says("step "); }

  void send(int signal, int rank) {
    if (launcher_ == Launcher::plain) return processes_[rank]->send(signal);
    const auto ranks = launcher().children();
    ASSERT_EQ(ranks.size(), size_t{kRanks});
    kill(ranks[rank], signal);
  }

  // Once all processes have ended; the lost one's among them.
  Outcome outcome() {
    Outcome outcome;
    for (auto& process : processes_) outcome.results.push_back(process->wait());
    for (auto& process : processes_) EXPECT_TRUE(process->group_is_gone()) << outcome.text();
    EXPECT_TRUE(folder_.names().empty());
    return outcome;
  }

 private:
  Launcher launcher_;
  TemporaryFolder folder_;
  std::vector<std::unique_ptr<ChildProcess>> processes_;
};

struct Loss {
  const char* name;
  Launcher launcher;
  const char* comm;
  int signal;
  int rank;
};

class LostRank : public ::testing::TestWithParam<Loss> {};

TEST_P(LostRank, EndsTheOthersWithOneMessageThatNamesRankStepAndOperation) {
  const auto& loss = GetParam();
  if (loss.launcher == Launcher::torchrun && !has_torchrun()) GTEST_SKIP() << "the slim torch wheel has no torchrun";
  LongRun run(loss.launcher, loss.comm);
  ASSERT_TRUE(run.takes_steps());
  run.send(loss.signal, loss.rank);
  const auto outcome = run.outcome();
  for (const auto& result : outcome.results) {
    EXPECT_FALSE(result.timed_out);
    EXPECT_NE(result.exit_code, 0) << result.err;
  }
  ASSERT_EQ(outcome.messages().size(), 1u) << outcome.text();
  expect_mentions(outcome.messages()[0], {"rank " + std::to_string(loss.rank), " of group '", ", step "});
  if (loss.signal == SIGSTOP) expect_mentions(outcome.messages()[0], {"has stood still for 6 s (--timeout)"});
}

const auto name_of_loss = [](const auto& instance) { return instance.param.name; };

INSTANTIATE_TEST_SUITE_P(Faults, LostRank,
                         ::testing::Values(Loss{"KilledOverShm", Launcher::plain, "shm", SIGKILL, 2},
                                           Loss{"KilledServerOverGloo", Launcher::plain, "gloo", SIGKILL, 0},
                                           Loss{"StoppedOverGloo", Launcher::plain, "gloo", SIGSTOP, 3},
                                           Loss{"OfOwnLauncherKilledOverGloo", Launcher::own, "gloo", SIGKILL, 3},
                                           Loss{"OfOwnLauncherStoppedOverShm", Launcher::own, "shm", SIGSTOP, 2},
                                           Loss{"OfTorchrunKilledOverGloo", Launcher::torchrun, "gloo", SIGKILL, 0}),
                         name_of_loss);
INSTANTIATE_TEST_SUITE_P(Full, LostRank,
                         ::testing::Values(Loss{"KilledOverGloo", Launcher::plain, "gloo", SIGKILL, 1},
                                           Loss{"KilledServerOverShm", Launcher::plain, "shm", SIGKILL, 0},
                                           Loss{"StoppedOverShm", Launcher::plain, "shm", SIGSTOP, 3},
                                           Loss{"StoppedServerOverGloo", Launcher::plain, "gloo", SIGSTOP, 0},
                                           Loss{"OfOwnLauncherKilledOverShm", Launcher::own, "shm", SIGKILL, 1},
                                           Loss{"OfTorchrunKilledOverShm", Launcher::torchrun, "shm", SIGKILL, 2},
                                           Loss{"OfTorchrunStoppedOverGloo", Launcher::torchrun, "gloo", SIGSTOP, 1}),
                         name_of_loss);

class EndedTorchrun : public ::testing::TestWithParam<int> {};

TEST_P(EndedTorchrun, TakesItsRanksAlong) {
  if (!has_torchrun()) GTEST_SKIP() << "the slim torch wheel has no torchrun";
  LongRun run(Launcher::torchrun, "gloo");
  ASSERT_TRUE(run.takes_steps());
  run.launcher().send(GetParam());
  const auto outcome = run.outcome();
  EXPECT_NE(outcome.results[0].exit_code, 0);
  EXPECT_LE(outcome.messages().size(), 1u) << outcome.text();
}

const auto name_of_signal = [](const auto& instance) { return std::string(strsignal(instance.param)); };
INSTANTIATE_TEST_SUITE_P(Signals, EndedTorchrun, ::testing::Values(SIGKILL), name_of_signal);
INSTANTIATE_TEST_SUITE_P(FullSignals, EndedTorchrun, ::testing::Values(SIGINT, SIGTERM), name_of_signal);

// ---- ranks that do different things

constexpr int kRankTimeout = 8;

at::Tensor one() { return at::zeros({1}); }

// Rank 0 gathers what rank 1 broadcasts, in the same place of one group.
void do_different_operations(World& world) {
  barrier(world.group());
  if (world.rank() == 0) {
    all_gather(at::zeros({world.size()}), one(), std::vector<int64_t>(world.size(), 1), world.group()).wait();
  } else {
    broadcast(one(), 0, world.group()).wait();
  }
}

// Rank 0 expects what rank 1 sends to rank 0 only after it has got something.
void send_where_others_reduce(World& world) {
  if (world.rank() == 0) {
    hop(at::zeros({0}), 1, one(), 1, world.group()).wait();
  } else {
    all_reduce(one(), world.group()).wait();
  }
}

// Each waits for the other, in two groups.
void wait_crosswise(World& world) {
  const auto first = world.group_of({0, 1}, "first"), second = world.group_of({0, 1}, "second");
  all_reduce(one(), world.rank() == 0 ? first : second).wait();
}

void fail_on_rank_1(World& world) {
  if (world.rank() == 1) fail<ConfigError>("this rank cannot go on.");
  barrier(world.group());
}

const RankPrograms kPrograms = {{"different operations", do_different_operations},
                                {"a send and a reduction", send_where_others_reduce},
                                {"crosswise", wait_crosswise},
                                {"a throw", fail_on_rank_1}};

ChildResult run_two(const std::string& program, const std::string& comm) {
  return run_child(rank_command(program, comm), {"PARDIFF_NPROC_PER_NODE=2"});
}

class RanksOver : public ::testing::TestWithParam<const char*> {};

TEST_P(RanksOver, ThatWaitInDifferentOperationsAreTold) {
  for (const auto& [program, other] :
       {std::pair{"different operations", "broadcast"}, {"a send and a reduction", "all_reduce"}}) {
    const auto result = run_two(program, GetParam());
    EXPECT_EQ(result.exit_code, 1) << result.err;
    ASSERT_EQ(result.errors().size(), 1u) << result.err;
    expect_mentions(result.errors()[0], {"rank 0", "rank 1", other, "The ranks do different things"});
    // Found by what they do, not by how long they do it.
    EXPECT_EQ(result.errors()[0].find("--timeout"), std::string::npos);
  }
}

TEST_P(RanksOver, ThatWaitForEachOtherAreTold) {
  const auto result = run_two("crosswise", GetParam());
  EXPECT_EQ(result.exit_code, 1) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  expect_mentions(result.errors()[0], {"rank 0 is in all_reduce of group 'ranks-0-1first'",
                                       "rank 1 is in all_reduce of group 'ranks-0-1second'"});
}

TEST_P(RanksOver, HearWhatOneThrowsOnce) {
  const auto result = run_two("a throw", GetParam());
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.errors(), (std::vector<std::string>{"pardiff: error: this rank cannot go on."})) << result.err;
}

INSTANTIATE_TEST_SUITE_P(Transports, RanksOver, ::testing::Values("shm", "gloo"),
                         [](const auto& instance) { return std::string(instance.param); });

// ---- too little of something

TEST(TooLittle, MemoryEndsTheRunWithOneMessage) {
  const TemporaryFolder folder;
  // Room for the program and its steps, and not for the planes of the picture, which rank 0 alone decodes.
  auto command = generate_command(folder / "picture.png", {"--ring-degree", "2"});
  for (const char* flag : {"--height", "--width"}) *(std::find(command.begin(), command.end(), flag) + 1) = "1024";
  std::vector<std::string> limited = {"bash", "-c", "ulimit -v 800000; exec \"$@\"", "limited"};
  limited.insert(limited.end(), command.begin(), command.end());
  ChildProcess child(limited);
  const auto result = child.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  expect_mentions(result.errors()[0], {"allocate memory"});
  EXPECT_TRUE(child.group_is_gone());
  EXPECT_TRUE(folder.names().empty());
}

TEST(TooLittle, RoomOnTheDiskEndsTheRunWithOneMessage) {
  const TemporaryFolder folder;
  fs::create_symlink("/dev/full", folder / "picture.png");
  ChildProcess child(generate_command(folder / "picture.png", {"--ring-degree", "2"}));
  const auto result = child.wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  expect_mentions(result.errors()[0], {"picture.png", "No space left on device"});
  EXPECT_TRUE(child.group_is_gone());
  EXPECT_EQ(folder.names(), std::vector<std::string>{"picture.png"});
}

}  // namespace
}  // namespace pardiff::testing

int main(int argc, char** argv) {
  using namespace pardiff::testing;
  return run_tests_or_rank(argc, argv, kPrograms, {.device = "cpu", .threads = 1, .timeout_s = kRankTimeout});
}
