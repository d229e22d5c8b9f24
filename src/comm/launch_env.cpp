#include <pardiff/comm/launch_env.h>
#include <pardiff/core/check.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>

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

void check_local(const LaunchEnv& env, const Names& names) {
  check<UsageError>(env.local_rank < env.local_world_size && env.local_world_size <= env.world_size, names.local_rank,
                    " is ", env.local_rank, ", ", names.local_size, " is ", env.local_world_size, " and ", names.size,
                    " is ", env.world_size, ". A machine's ranks count from 0, and are some of all.");
}

LaunchEnv read(const Names& names) {
  LaunchEnv env;
  env.launcher = names.launcher;
  env.world_size = number(names.size, 1, kMostRanks);
  env.rank = number(names.rank, 0, kMostRanks);
  check<UsageError>(env.rank < env.world_size, names.rank, " is ", env.rank, " and ", names.size, " is ",
                    env.world_size, ". Ranks count from 0 to ", env.world_size - 1, ".");
  env.local_rank = variable(names.local_rank) ? number(names.local_rank, 0, kMostRanks) : env.rank;
  env.local_world_size = variable(names.local_size) ? number(names.local_size, 1, kMostRanks) : env.world_size;
  check_local(env, names);
  if (const char* address = variable("MASTER_ADDR")) env.master_address = address;
  if (variable("MASTER_PORT")) env.master_port = number("MASTER_PORT", 1, 65535);
  return env;
}

// Jobs of one machine must not meet at the same port. These lie below those that systems hand out themselves.
void use_port_of_job(LaunchEnv& env, const std::string& job) {
  constexpr uint32_t kFirst = 20000, kCount = 10000;
  uint32_t hash = 2166136261u;  // FNV-1a: equal on every machine, as std::hash need not be
  for (const unsigned char byte : job) hash = (hash ^ byte) * 16777619u;
  if (!variable("MASTER_PORT")) env.master_port = static_cast<int>(kFirst + hash % kCount);
}

LaunchEnv open_mpi() {
  auto env = read({"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                   "OMPI_COMM_WORLD_LOCAL_SIZE"});
  check<UsageError>(env.local_world_size == env.world_size || variable("MASTER_ADDR"), "mpirun starts ", env.world_size,
                    " ranks, ", env.local_world_size, " of them on this machine, and MASTER_ADDR is not set. Give the ",
                    "name of rank 0's machine: mpirun -x MASTER_ADDR=NAME.");
  if (const char* job = variable("PMIX_NAMESPACE")) use_port_of_job(env, job);
  return env;
}

// "2(x3)" -> 2 tasks on each of 3 nodes, "2" -> 2 tasks on one node; nothing for what is no such text.
std::optional<std::pair<int, int>> tasks_and_nodes(const std::string& entry) {
  const char* const end = entry.data() + entry.size();
  const auto counts = [](int count) { return count >= 1 && count <= kMostRanks; };
  int tasks = 0, nodes = 1;
  const auto first = std::from_chars(entry.data(), end, tasks);
  if (first.ec != std::errc() || !counts(tasks)) return std::nullopt;
  if (first.ptr == end) return {{tasks, nodes}};
  const std::string_view rest(first.ptr, static_cast<size_t>(end - first.ptr));
  if (!rest.starts_with("(x") || !rest.ends_with(')')) return std::nullopt;
  const auto second = std::from_chars(first.ptr + 2, end, nodes);
  if (second.ec != std::errc() || second.ptr + 1 != end || !counts(nodes)) return std::nullopt;
  return {{tasks, nodes}};
}

// Entry `node` of a list such as "2(x3),1": three nodes have 2 tasks, one has 1.
int tasks_of_node(const char* name, int node) {
  std::istringstream entries(variable(name));
  for (std::string entry; std::getline(entries, entry, ',');) {
    const auto counts = tasks_and_nodes(entry);
    if (!counts) break;
    if (node < counts->second) return counts->first;
    node -= counts->second;
  }
  fail<UsageError>("environment variable ", name, " is '", variable(name), "', which tells no number of tasks for ",
                   "this node. Correct it.");
}

// "gpu[07-09,12],big1" -> "gpu07"
std::string first_host(const std::string& list) {
  const auto end = list.find_first_of("[,");
  auto host = list.substr(0, end);
  if (end != std::string::npos && list[end] == '[')
    host += list.substr(end + 1, list.find_first_of("-,]", end) - end - 1);
  return host;
}

LaunchEnv slurm() {
  constexpr const char* kTasks = "SLURM_STEP_TASKS_PER_NODE";
  const Names names = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""};
  auto env = read(names);
  if (variable(kTasks)) {
    env.local_world_size = tasks_of_node(kTasks, variable("SLURM_NODEID") ? number("SLURM_NODEID", 0, kMostRanks) : 0);
    check_local(env, {names.launcher, names.rank, names.size, names.local_rank, kTasks});
  }
  if (!variable("MASTER_ADDR") && env.local_world_size < env.world_size) {
    const char* nodes = variable("SLURM_STEP_NODELIST");
    check<UsageError>(nodes, "Slurm starts ", env.world_size, " tasks, ", env.local_world_size,
                      " of them on this node, and neither MASTER_ADDR nor SLURM_STEP_NODELIST is set. Export rank 0's ",
                      "node in MASTER_ADDR.");
    env.master_address = first_host(nodes);
  }
  if (const char* job = variable("SLURM_JOB_ID")) use_port_of_job(env, text_of(job, ".", variable("SLURM_STEP_ID")));
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
  if (variable("OMPI_COMM_WORLD_SIZE") || variable("OMPI_COMM_WORLD_RANK")) return open_mpi();
  if (variable("SLURM_PROCID") && variable("SLURM_NTASKS") && variable("SLURM_STEP_ID")) return slurm();
  return std::nullopt;
}

}  // namespace pardiff
