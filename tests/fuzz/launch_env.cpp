// The input is an environment, one NAME=VALUE on each line.
#include <pardiff/comm/launch_env.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "fuzz/input.h"

namespace {

using namespace pardiff;

constexpr std::array kNames = {"RANK",
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
                               "PMIX_NAMESPACE",
                               "OMPI_COMM_WORLD_LOCAL_RANK",
                               "OMPI_COMM_WORLD_LOCAL_SIZE",
                               "SLURM_PROCID",
                               "SLURM_NTASKS",
                               "SLURM_LOCALID",
                               "SLURM_NODEID",
                               "SLURM_STEP_ID",
                               "SLURM_STEP_TASKS_PER_NODE",
                               "SLURM_STEP_NODELIST",
                               "SLURM_JOB_ID"};

void set_environment(std::string_view input) {
  for (const auto* name : kNames) unsetenv(name);
  std::istringstream lines{std::string(input)};
  for (std::string line; std::getline(lines, line);) {
    line.resize(std::min(line.find('\0'), line.size()));
    const auto equals = std::min(line.find('='), line.size());
    const auto name = line.substr(0, equals);
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end() || equals == line.size()) continue;
    setenv(name.c_str(), line.c_str() + equals + 1, 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  set_environment(fuzz::text_of_input(data, size));
  fuzz::expect_refusal_or_success([] {
    const auto env = LaunchEnv::from_environment();
    if (!env) return;
    const bool counts = env->world_size >= 1 && env->rank >= 0 && env->rank < env->world_size;
    const bool local =
        env->local_rank >= 0 && env->local_rank < env->local_world_size && env->local_world_size <= env->world_size;
    if (!counts || !local || env->master_port < 1 || env->master_port > 65535) std::abort();
  });
  return 0;
}
