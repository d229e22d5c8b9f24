#include <gtest/gtest.h>
#include <pardiff/io/image.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "support/failure.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;

// Long enough to be interrupted.
std::vector<std::string> long_command(const TemporaryFolder& folder) {
  auto command = generate_command(folder / "picture.png", {"--ulysses-degree", "2"});
  *(std::find(command.begin(), command.end(), "--steps") + 1) = "10000";
  return command;
}

void expect_nothing_left(const ChildProcess& child, const TemporaryFolder& folder) {
  EXPECT_TRUE(child.group_is_gone());
  EXPECT_TRUE(folder.names().empty());
}

TEST(OwnLauncher, EndsAllRanksWhenOneIsKilled) {
  const TemporaryFolder folder;
  ChildProcess child(long_command(folder));
  ASSERT_TRUE(child.says("step "));
  const auto ranks = child.children();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  const auto result = child.wait(std::chrono::seconds(20));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  EXPECT_NE(result.errors()[0].find("signal 9"), std::string::npos);
  expect_nothing_left(child, folder);
}

TEST(OwnLauncher, EndsAStoppedRankToo) {
  const TemporaryFolder folder;
  ChildProcess child(long_command(folder));
  ASSERT_TRUE(child.says("step "));
  const auto ranks = child.children();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[0], SIGSTOP);
  kill(ranks[1], SIGKILL);
  EXPECT_EQ(child.wait(std::chrono::seconds(20)).exit_code, 1);
  expect_nothing_left(child, folder);
}

TEST(OwnLauncher, EndsRanksOnControlC) {
  const TemporaryFolder folder;
  ChildProcess child(long_command(folder));
  ASSERT_TRUE(child.says("step "));
  child.send_to_group(SIGINT);
  const auto result = child.wait(std::chrono::seconds(20));
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_TRUE(result.errors().empty()) << result.err;
  expect_nothing_left(child, folder);
}

TEST(OwnLauncher, EndsRanksOnTermination) {
  const TemporaryFolder folder;
  ChildProcess child(long_command(folder));
  ASSERT_TRUE(child.says("step "));
  child.send(SIGTERM);
  EXPECT_EQ(child.wait(std::chrono::seconds(20)).exit_code, 128 + SIGTERM);
  expect_nothing_left(child, folder);
}

TEST(OwnLauncher, TakesItsRanksAlongWhenItIsKilled) {
  const TemporaryFolder folder;
  ChildProcess child(long_command(folder));
  ASSERT_TRUE(child.says("step "));
  ASSERT_EQ(child.children().size(), 2u);
  child.send(SIGKILL);
  EXPECT_EQ(child.wait(std::chrono::seconds(20)).signal, SIGKILL);
  expect_nothing_left(child, folder);
}

// The picture that one process makes.
std::vector<uint8_t> expected_picture(const TemporaryFolder& folder) {
  EXPECT_EQ(run_child(generate_command(folder / "one.png")).exit_code, 0);
  return Image::load(folder / "one.png").rgb;
}

// Equal but for the rounding of a few pixels.
void expect_close(const std::vector<uint8_t>& actual, const std::vector<uint8_t>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  int furthest = 0;
  for (size_t i = 0; i < actual.size(); ++i) furthest = std::max(furthest, std::abs(actual[i] - expected[i]));
  EXPECT_LE(furthest, 1);
}

bool has_torchrun() {
  static const bool works = fs::exists(PARDIFF_TORCHRUN) && run_child({PARDIFF_TORCHRUN, "--help"}).exit_code == 0;
  return works;
}

TEST(Torchrun, StartsRanksThatMakeThePicture) {
  if (!has_torchrun()) GTEST_SKIP() << "the slim torch wheel has no working torchrun";
  const TemporaryFolder folder;
  std::vector<std::string> command = {
      PARDIFF_TORCHRUN, "--no-python", "--nproc-per-node", "2", "--master-port", std::to_string(free_port())};
  const auto generate = generate_command(folder / "torchrun.png", {"--ulysses-degree", "2"});
  command.insert(command.end(), generate.begin(), generate.end());
  const auto result = run_child(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_close(Image::load(folder / "torchrun.png").rgb, expected_picture(folder));
}

TEST(Torchrun, GetsOneMessageFromRanksThatAllFail) {
  if (!has_torchrun()) GTEST_SKIP() << "the slim torch wheel has no working torchrun";
  const TemporaryFolder folder;
  for (const auto& [degree, mention] : {std::pair{"3", "multiply to 3"}, {"2", "does not exist"}}) {
    std::vector<std::string> command = {
        PARDIFF_TORCHRUN, "--no-python", "--nproc-per-node", "2", "--master-port", std::to_string(free_port())};
    const auto generate = generate_command(folder / "nowhere/x.png", {"--ulysses-degree", degree});
    command.insert(command.end(), generate.begin(), generate.end());
    const auto result = run_child(command);
    EXPECT_NE(result.exit_code, 0);
    ASSERT_EQ(result.errors().size(), 1u) << result.err;
    expect_mentions(result.errors()[0], {mention});
  }
}

std::vector<std::string> mpirun(const std::vector<std::string>& program) {
  std::vector<std::string> command = {PARDIFF_MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", "2"};
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

TEST(Mpirun, StartsRanksThatMakeThePicture) {
  const TemporaryFolder folder;
  const auto result = run_child(mpirun(generate_command(folder / "two.png", {"--ulysses-degree", "2"})));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(run_child(generate_command(folder / "own.png", {"--ulysses-degree", "2"})).exit_code, 0);
  EXPECT_EQ(content_of(folder / "two.png"), content_of(folder / "own.png"));
}

TEST(Mpirun, RunsTwoJobsAtOnce) {
  const TemporaryFolder folder;
  ChildProcess first(mpirun(generate_command(folder / "first.png", {"--ulysses-degree", "2"})));
  ChildProcess second(mpirun(generate_command(folder / "second.png", {"--ring-degree", "2"})));
  for (auto* job : {&first, &second}) {
    const auto result = job->wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"first.png", "second.png"}));
}

TEST(Mpirun, GetsOneMessageFromRanksThatAllFail) {
  const TemporaryFolder folder;
  for (const auto& [flag, value, code] :
       {std::tuple{"--ulysses-degree", "3", 2}, {"--attention-backend", "flash", 1}}) {
    const auto result = run_child(mpirun(generate_command(folder / "x.png", {flag, value})));
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(result.errors().size(), 1u) << result.err;
    EXPECT_TRUE(folder.names().empty());
  }
}

int64_t count_of(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Mpirun, GetsOneListAndOneRefusalFromRanksThatAllPrint) {
  const TemporaryFolder folder;
  const auto model = model_path("flux-shapes");
  for (const auto& [command, mention] :
       {std::pair{std::vector<std::string>{program(), "inspect", model}, "FluxTransformer2DModel"},
        {{program(), "doctor"}, "attention backends"},
        {{program(), "--version"}, "pardiff 0."}}) {
    const auto result = run_child(mpirun(command));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(count_of(result.out, mention), 1) << result.out;
  }
  for (const auto& command : {std::vector<std::string>{program(), "init", "bench", folder / "model"},
                              {program(), "convert", model, folder / "model"},
                              {program(), "inspect", "/usr"}}) {
    const auto result = run_child(mpirun(command));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_EQ(result.errors().size(), 1u) << result.err;
  }
  EXPECT_TRUE(folder.names().empty());
}

// mpirun gives its ranks groups of their own, and may leave before the last one does.
bool has_ended(pid_t process) {
  for (int tries = 0; tries < 1000; ++tries) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text;
    if (!std::getline(file, text)) return true;
    if (text.compare(text.rfind(')') + 2, 1, "Z") == 0) return true;  // dead, and nobody has asked yet
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(Mpirun, EndsAllRanksWhenOneIsKilled) {
  const TemporaryFolder folder;
  ChildProcess child(mpirun(long_command(folder)));
  ASSERT_TRUE(child.says("step "));
  const auto ranks = child.children();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[0], SIGKILL);
  EXPECT_NE(child.wait(std::chrono::seconds(20)).exit_code, 0);
  expect_nothing_left(child, folder);
  for (const auto rank : ranks) EXPECT_TRUE(has_ended(rank)) << rank;
}

// Two processes with the variables of another launcher.
std::vector<ChildResult> run_two(const std::vector<std::string>& command,
                                 const std::function<std::vector<std::string>(int rank)>& environment) {
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(std::make_unique<ChildProcess>(command, environment(rank)));
  std::vector<ChildResult> results;
  for (auto& rank : ranks) results.push_back(rank->wait());
  return results;
}

struct Launcher {
  const char* name;
  std::vector<std::string> (*environment)(int rank);
};

std::vector<std::string> open_mpi(int rank) {
  const auto text = std::to_string(rank);
  return {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=" + text, "OMPI_COMM_WORLD_LOCAL_SIZE=2",
          "OMPI_COMM_WORLD_LOCAL_RANK=" + text};
}

std::vector<std::string> slurm(int rank) {
  const auto text = std::to_string(rank);
  return {"SLURM_PROCID=" + text, "SLURM_LOCALID=" + text,       "SLURM_NTASKS=2",
          "SLURM_STEP_ID=0",      "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_STEP_NODELIST=here"};
}

std::vector<std::string> plain(int rank) {
  const auto text = std::to_string(rank);
  return {"RANK=" + text, "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1"};
}

class OtherLauncher : public ::testing::TestWithParam<Launcher> {
 protected:
  std::vector<ChildResult> run(const std::vector<std::string>& command) const {
    const auto port = "MASTER_PORT=" + std::to_string(free_port());
    return run_two(command, [&](int rank) {
      auto environment = GetParam().environment(rank);
      environment.push_back(port);
      return environment;
    });
  }
};

TEST_P(OtherLauncher, EachProcessIsOneRank) {
  const TemporaryFolder folder;
  const auto results = run(generate_command(folder / "two.png", {"--ring-degree", "2"}));
  for (const auto& result : results) ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_close(Image::load(folder / "two.png").rgb, expected_picture(folder));
}

TEST_P(OtherLauncher, RanksThatAllFailGiveOneMessage) {
  const TemporaryFolder folder;
  auto command = generate_command(folder / "two.png", {"--ring-degree", "2"});
  *(std::find(command.begin(), command.end(), "--model") + 1) = "/usr";
  const auto results = run(command);
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_EQ(results[1].exit_code, 1);
  EXPECT_EQ(results[0].errors().size() + results[1].errors().size(), 1u) << results[0].err << results[1].err;
}

INSTANTIATE_TEST_SUITE_P(Environments, OtherLauncher,
                         ::testing::Values(Launcher{"OpenMpi", open_mpi}, Launcher{"Slurm", slurm},
                                           Launcher{"Plain", plain}),
                         [](const auto& instance) { return instance.param.name; });

TEST(HalfSetEnvironment, IsAUsageError) {
  const TemporaryFolder folder;
  const auto result = run_child(generate_command(folder / "x.png"), {"RANK=0"});
  EXPECT_EQ(result.exit_code, 2);
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  expect_mentions(result.errors()[0], {"WORLD_SIZE"});
}

}  // namespace
}  // namespace pardiff::testing
