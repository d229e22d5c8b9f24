#include <pardiff/comm/launch_env.h>
#include <pardiff/core/check.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace pardiff {
namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

int number(const char* name, int least, int most) {
  const char* text = variable(name);
  check<UsageError>(text, name, " is not set, and other variables of a launcher are. Set all of them or none.");
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  check<UsageError>(error == std::errc() && *end == 0 && value >= least && value <= most, "environment variable ", name,
                    " is '", text, "', not a number from ", least, " to ", most, ". Correct it.");
  return value;
}

constexpr int kMostRanks = 1 << 16;

struct Names {
  const char *launcher, *rank, *size, *local_rank, *local_size;
};

LaunchEnv read(const Names& names) {
  LaunchEnv env;
  env.launcher = names.launcher;
  env.world_size = number(names.size, 1, kMostRanks);
  env.rank = number(names.rank, 0, kMostRanks);
  check<UsageError>(env.rank < env.world_size, names.rank, " is ", env.rank, " and ", names.size, " is ",
                    env.world_size, ". Ranks count from 0 to ", env.world_size - 1, ".");
  env.local_rank = variable(names.local_rank) ? number(names.local_rank, 0, kMostRanks) : env.rank;
  env.local_world_size = variable(names.local_size) ? number(names.local_size, 1, kMostRanks) : env.world_size;
  check<UsageError>(env.local_rank < env.local_world_size, names.local_rank, " is ", env.local_rank, " and ",
                    names.local_size, " is ", env.local_world_size, ".");
  if (const char* address = variable("MASTER_ADDR")) env.master_address = address;
  if (variable("MASTER_PORT")) env.master_port = number("MASTER_PORT", 1, 65535);
  return env;
}

}  // namespace

std::optional<LaunchEnv> LaunchEnv::from_environment() {
  if (variable("RANK") || variable("WORLD_SIZE")) {
    auto env = read({"environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
    const char* served = variable("TORCHELASTIC_USE_AGENT_STORE");
    env.store_is_served = served && std::strcmp(served, "True") == 0;
    if (variable("TORCHELASTIC_RUN_ID")) env.launcher = "torchrun";
    if (variable("PARDIFF_PARENT_PID")) env.launcher = "pardiff";
    check<UsageError>(env.world_size == 1 || (variable("MASTER_ADDR") && variable("MASTER_PORT")),
                      "RANK and WORLD_SIZE are set, MASTER_ADDR or MASTER_PORT is not. Set all of them or none.");
    return env;
  }
  if (variable("OMPI_COMM_WORLD_SIZE") || variable("OMPI_COMM_WORLD_RANK")) {
    return read({"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                 "OMPI_COMM_WORLD_LOCAL_SIZE"});
  }
  if (variable("SLURM_PROCID") && variable("SLURM_NTASKS") && variable("SLURM_STEP_ID")) {
    auto env = read({"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"});
    check<UsageError>(env.world_size == 1 || variable("MASTER_ADDR"), "Slurm starts ", env.world_size,
                      " tasks, and MASTER_ADDR is not set. Export the first node's name in it.");
    return env;
  }
  return std::nullopt;
}

}  // namespace pardiff
