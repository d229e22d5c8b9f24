#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/core/device.h>
#include <pardiff/core/log.h>
#include <unistd.h>

#include <cstdlib>

#include "comm/backends/liveness.h"
#include "comm/backends/threads.h"
#include "comm/host_memory.h"
#include "comm/rendezvous.h"

namespace pardiff {
namespace {

int chosen_threads(int wanted, int local_ranks) {
  if (wanted > 0) return wanted;
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const int value = std::atoi(text);
    if (value > 0) return value;
  }
  return std::max(1, allowed_cores() / std::max(1, local_ranks));
}

bool has_nvidia_driver() { return access("/dev/nvidiactl", F_OK) == 0; }

// Ranks share a GPU where there are more of them, which every transport but NCCL allows.
at::Device gpu_of(const LaunchEnv& env, const std::string& comm) {
  const int gpus = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  const bool uses_nccl = env.launcher != "threads" && env.world_size > 1 && comm != "gloo";
  check<ConfigError>(!uses_nccl || env.local_world_size <= gpus, env.local_world_size, " ranks of this machine have ",
                     gpus, " GPUs, and NCCL needs one for each. Use --comm gloo (slow, ",
                     "through host memory), or fewer ranks.");
  return {at::kCUDA, static_cast<at::DeviceIndex>(env.local_rank % gpus)};
}

at::Device chosen_device(const std::string& name, const LaunchEnv& env, const std::string& comm) {
  check<UsageError>(name == "auto" || name == "cpu" || name == "cuda", "unknown device '", name,
                    "'. Use auto, cpu or cuda.");
  if (name == "cpu") return at::kCPU;
  if (name == "auto" && !has_nvidia_driver()) return at::kCPU;  // the CUDA part takes long to open
  const auto reason = why_no_cuda();
  const bool has_cuda = reason.empty();
  check<ConfigError>(name == "auto" || has_cuda, "device cuda cannot be used: ", reason, ". Use --device cpu.");
  return has_cuda ? gpu_of(env, comm) : at::Device(at::kCPU);
}

void check_transport(const std::string& name, const at::Device& device) {
  check<UsageError>(name == "auto" || name == "shm" || name == "gloo" || name == "nccl", "unknown transport '", name,
                    "' (comm). Use auto, shm, gloo or nccl.");
  const bool fits = (name != "nccl" || device.is_cuda()) && (name != "shm" || device.is_cpu());
  check<ConfigError>(fits, "transport ", name, " (comm) carries no tensors of device ", device.str(), ". Use --comm ",
                     device.is_cpu() ? "shm or gloo" : "nccl or gloo", ", or --device ",
                     device.is_cpu() ? "cuda" : "cpu", ".");
}

std::string group_name(const std::vector<int>& ranks) { return "ranks-" + joined(ranks, "-"); }

}  // namespace

World::World(const WorldOptions& options) : World(LaunchEnv{}, options, nullptr) {}

World::World(const LaunchEnv& env, const WorldOptions& options, std::shared_ptr<comm::Rendezvous> rendezvous)
    : env_(env),
      options_(options),
      device_(chosen_device(options.device, env, options.comm)),
      counter_(std::make_shared<CommunicationCounter>()),
      rendezvous_(std::move(rendezvous)) {
  check_transport(options.comm, device_);
  threads_ = chosen_threads(options.threads, env.local_world_size);
  if (!rendezvous_) {
    at::set_num_threads(threads_);
    return;
  }
  if (env.launcher != "threads") at::set_num_threads(threads_);
  // Ranks that take different transports would wait for each other in different places.
  if (env.launcher != "threads") agree("transport (--comm) and device", text_of(options.comm, " on ", device_.type()));
  host_group_ = make_group("world", env.rank, env.world_size, at::kCPU);
  group_ = device_.is_cpu() ? host_group_ : make_group("world-device", env.rank, env.world_size, device_.type());
}

World::~World() = default;

ProcessGroup World::make_group(const std::string& name, int rank, int size, at::DeviceType device) const {
  const auto own = device == device_.type() ? device_ : at::Device(device);
  return ProcessGroup(name, rendezvous_->make_group(name, rank, size, own), counter_);
}

ProcessGroup World::group_of(const std::vector<int>& ranks, const std::string& purpose) {
  if (ranks.size() <= 1) return {};
  if (purpose.empty() && static_cast<int>(ranks.size()) == size() && std::is_sorted(ranks.begin(), ranks.end()))
    return group_;
  const auto known = groups_.find({ranks, purpose});
  if (known != groups_.end()) return known->second;
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  check<ConfigError>(own != ranks.end(), "rank ", rank(), " is not in the group of ranks ", joined(ranks), ".");
  const auto made = make_group(group_name(ranks) + purpose, static_cast<int>(own - ranks.begin()),
                               static_cast<int>(ranks.size()), device_.type());
  groups_[{ranks, purpose}] = made;
  return made;
}

std::shared_ptr<comm::HostMemory> World::host_memory(const std::string& key, const std::vector<size_t>& block_bytes) {
  if (!rendezvous_) return nullptr;
  // What another rank opens must be there until the run ends.
  const auto [found, is_new] = host_memories_.try_emplace(key);
  if (is_new) found->second = rendezvous_->host_memory(key, block_bytes);
  return found->second;
}

std::vector<std::string> World::texts_of_all(const std::string& text) {
  if (size() == 1) return {text};
  const auto key = text_of("exchange/", next_exchange_++, "/");
  rendezvous_->publish(key + std::to_string(rank()), text);
  std::vector<std::string> texts;
  for (int peer = 0; peer < size(); ++peer) texts.push_back(rendezvous_->fetch(key + std::to_string(peer)));
  return texts;
}

void World::agree(const std::string& field, const std::string& value) {
  const auto values = texts_of_all(value);
  std::vector<int> others;
  for (int peer = 1; peer < size(); ++peer) {
    if (values[peer] != values[0]) others.push_back(peer);
  }
  if (others.empty()) return;
  fail<CommError>("the ranks disagree on ", field, ": rank 0 has '", values[0], "', rank ", others.front(), " has '",
                  values[others.front()], "'", others.size() > 1 ? " (differing ranks: " + joined(others) + ")" : "",
                  ". Start all ranks with the same arguments and files.");
}

std::string World::text_from_rank_0(const std::string& text) {
  if (size() == 1) return text;
  const auto key = text_of("exchange/", next_exchange_++, "/0");
  if (rank() == 0) rendezvous_->publish(key, text);
  return rendezvous_->fetch(key);
}

int64_t World::from_rank_0(int64_t value) { return std::stoll(text_from_rank_0(std::to_string(value))); }

void World::finish() {
  if (rendezvous_ && rendezvous_->liveness()) rendezvous_->liveness()->leave();
}

}  // namespace pardiff
