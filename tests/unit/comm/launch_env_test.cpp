#include <gtest/gtest.h>
#include <pardiff/comm/launch_env.h>
#include <pardiff/core/error.h>

#include <cstdlib>
#include <map>
#include <string>

#include "support/failure.h"

namespace pardiff {
namespace {

using testing::expect_failure;

constexpr const char* kVariables[] = {"RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_USE_AGENT_STORE",
                                      "TORCHELASTIC_RUN_ID",
                                      "PARDIFF_PARENT_PID",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK",
                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "SLURM_PROCID",
                                      "SLURM_NTASKS",
                                      "SLURM_LOCALID",
                                      "SLURM_NODEID",
                                      "SLURM_JOB_ID",
                                      "SLURM_STEP_ID",
                                      "SLURM_STEP_NODELIST",
                                      "SLURM_STEP_TASKS_PER_NODE",
                                      "PMIX_NAMESPACE"};

// Exactly the given launcher variables while it lives.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& set) {
    for (const auto* name : kVariables) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
    }
    for (const auto& [name, value] : set) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto* name : kVariables) unsetenv(name);
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> before_;
};

LaunchEnv read(const std::map<std::string, std::string>& set) {
  const Environment environment(set);
  return LaunchEnv::from_environment().value();
}

void expect_refused(const std::map<std::string, std::string>& set, const std::vector<std::string>& parts) {
  const Environment environment(set);
  expect_failure<UsageError>([] { LaunchEnv::from_environment(); }, parts);
}

TEST(LaunchEnv, IsAbsentWithoutALauncher) {
  const Environment environment({});
  EXPECT_FALSE(LaunchEnv::from_environment());
}

TEST(LaunchEnv, ReadsTorchrun) {
  const auto env = read({{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "node7"},
                         {"MASTER_PORT", "12345"},
                         {"TORCHELASTIC_RUN_ID", "none"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(env.rank, 5);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.master_address, "node7");
  EXPECT_EQ(env.master_port, 12345);
  EXPECT_TRUE(env.store_is_served);
  EXPECT_EQ(env.launcher, "torchrun");
}

TEST(LaunchEnv, ReadsAPlainEnvironmentWhoseRank0ServesTheStore) {
  const auto env = read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(env.launcher, "environment");
  EXPECT_FALSE(env.store_is_served);
  EXPECT_EQ(env.local_world_size, 2);
}

TEST(LaunchEnv, OneRankNeedsNoMaster) { EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1); }

TEST(LaunchEnv, ReadsOpenMpi) {
  const auto env = read({{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"MASTER_ADDR", "first"}});
  EXPECT_EQ(env.launcher, "Open MPI");
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_address, "first");
}

// One of 4 ranks of this machine, which mpirun of one machine tells no address.
std::map<std::string, std::string> mpi_job(const std::string& job) {
  return {{"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
          {"PMIX_NAMESPACE", job}};
}

TEST(LaunchEnv, GivesEveryJobOfAMachineAPortOfItsOwn) {
  const auto one = read(mpi_job("1425866753")), again = read(mpi_job("1425866753")),
             other = read(mpi_job("1425801217"));
  EXPECT_EQ(one.master_address, "127.0.0.1");
  EXPECT_EQ(one.master_port, again.master_port);
  EXPECT_NE(one.master_port, other.master_port);
  auto given = mpi_job("1425866753");
  given["MASTER_PORT"] = "7";
  EXPECT_EQ(read(given).master_port, 7);
}

TEST(LaunchEnv, ReadsASlurmStep) {
  const auto env = read({{"SLURM_PROCID", "2"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                         {"SLURM_STEP_ID", "0"},
                         {"MASTER_ADDR", "first"}});
  EXPECT_EQ(env.launcher, "Slurm");
  EXPECT_EQ(env.rank, 2);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_address, "first");
}

// One task of a step over several nodes.
std::map<std::string, std::string> slurm_task(const std::string& nodes, const std::string& tasks,
                                              const std::string& node) {
  return {{"SLURM_PROCID", "0"},          {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "7"},
          {"SLURM_JOB_ID", "12"},         {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", tasks},
          {"SLURM_STEP_NODELIST", nodes}, {"SLURM_NODEID", node}};
}

TEST(LaunchEnv, FindsTheMasterAndTheLocalRanksOfASlurmStepByItself) {
  EXPECT_EQ(read(slurm_task("gpu[07-09,12],big1", "2(x3),1", "0")).master_address, "gpu07");
  EXPECT_EQ(read(slurm_task("gpu[3,5]", "4,3", "0")).master_address, "gpu3");
  EXPECT_EQ(read(slurm_task("big1,gpu2", "4,3", "0")).master_address, "big1");
  EXPECT_EQ(read(slurm_task("big1", "7", "0")).master_address, "127.0.0.1");
  EXPECT_EQ(read(slurm_task("gpu[1-4]", "2(x3),1", "2")).local_world_size, 2);
  EXPECT_EQ(read(slurm_task("gpu[1-4]", "2(x3),1", "3")).local_world_size, 1);
  const auto one = slurm_task("big1", "7", "0");
  auto next_step = one;
  next_step["SLURM_STEP_ID"] = "1";
  EXPECT_NE(read(one).master_port, read(next_step).master_port);
}

TEST(LaunchEnv, ASlurmAllocationWithoutAStepIsNoLauncher) {
  const Environment environment({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  EXPECT_FALSE(LaunchEnv::from_environment());
}

TEST(LaunchEnv, RefusesHalfSetAndMeaninglessValues) {
  expect_refused({{"RANK", "0"}}, {"WORLD_SIZE is not set"});
  expect_refused({{"WORLD_SIZE", "2"}}, {"RANK is not set"});
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {"MASTER_ADDR or MASTER_PORT"});
  expect_refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK is 2", "WORLD_SIZE is 2"});
  expect_refused({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK is '-1'", "0 to"});
  expect_refused({{"RANK", "0x1"}, {"WORLD_SIZE", "2"}}, {"RANK is '0x1'"});
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE is '0'"});
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, {"WORLD_SIZE is '99999999999'"});
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}},
                 {"MASTER_PORT is '70000'"});
  expect_refused({{"RANK", "1"},
                  {"WORLD_SIZE", "2"},
                  {"LOCAL_RANK", "1"},
                  {"LOCAL_WORLD_SIZE", "1"},
                  {"MASTER_ADDR", "a"},
                  {"MASTER_PORT", "7"}},
                 {"LOCAL_RANK is 1", "LOCAL_WORLD_SIZE is 1"});
  expect_refused({{"OMPI_COMM_WORLD_SIZE", "2"}}, {"OMPI_COMM_WORLD_RANK is not set"});
  expect_refused({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                 {"MASTER_ADDR is not set", "mpirun -x"});
  expect_refused(
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}},
      {"neither MASTER_ADDR nor SLURM_STEP_NODELIST"});
  expect_refused(slurm_task("gpu[1-4]", "2(x3)", "3"), {"SLURM_STEP_TASKS_PER_NODE is '2(x3)'"});
}

}  // namespace
}  // namespace pardiff
