#pragma once
#include <c10/core/Device.h>
#include <pardiff/comm/launch_env.h>
#include <pardiff/comm/process_group.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pardiff {

namespace comm {
class HostMemory;
class Rendezvous;
}  // namespace comm

struct WorldOptions {
  /// "auto" (cuda when there is one), "cpu" or "cuda".
  std::string device = "auto";
  /// "auto", or the device's transport by name: "shm" or "gloo" (cpu), "nccl" (cuda). "auto" takes shm where all ranks
  /// of a group share one host's memory, else gloo.
  std::string comm = "auto";
  /// CPU threads of this rank; 0: OMP_NUM_THREADS, else allowed cores / local ranks.
  int threads = 0;
  /// How long another rank may stand still (stopped, frozen, absent) before the run ends. Long work is no standstill.
  int timeout_s = 600;
};

/// A rank's start: the group of all ranks, the device, the rendezvous. Made once by `run` and passed on.
class World {
 public:
  /// A world of one, without any rendezvous.
  explicit World(const WorldOptions& options = {});
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return env_.rank; }
  int size() const { return env_.world_size; }
  int local_rank() const { return env_.local_rank; }
  int local_size() const { return env_.local_world_size; }
  at::Device device() const { return device_; }
  int threads() const { return threads_; }
  const LaunchEnv& launch_env() const { return env_; }

  /// All ranks, for tensors on the device.
  const ProcessGroup& group() const { return group_; }
  /// All ranks, for tensors in host memory.
  const ProcessGroup& host_group() const { return host_group_; }
  /// The group of `ranks`, in that order; the same list gives the same group again, and one rank the identity.
  /// A `purpose` gives a group of its own, whose transfers run beside those of other groups of these ranks.
  /// Collective: the ranks of the list.
  ProcessGroup group_of(const std::vector<int>& ranks, const std::string& purpose = {});

  /// Compares `value` among all ranks under `field`. Collective.
  /// Throws: CommError on every rank if one differs; it names the ranks and the field.
  void agree(const std::string& field, const std::string& value);
  /// Rank 0's value, on every rank. Collective.
  int64_t from_rank_0(int64_t value);
  std::string text_from_rank_0(const std::string& text);
  /// Every rank's text, in rank order. Collective.
  std::vector<std::string> texts_of_all(const std::string& text);

  /// The blocks of memory that the ranks of this host have together under `key`, for ranks that give the same key and
  /// sizes; null if they have none. Waits for no rank but the first that asks.
  std::shared_ptr<comm::HostMemory> host_memory(const std::string& key, const std::vector<size_t>& block_bytes);

  CommunicationCounter& counter() const { return *counter_; }

  /// This rank is done. Whoever serves the rendezvous waits here until every rank is.
  void finish();

 private:
  friend int run(const std::function<void(World&)>&, const WorldOptions&);
  friend int run_as_threads(int, const std::function<void(World&)>&, const WorldOptions&);
  // One of the ranks that `env` describes.
  World(const LaunchEnv& env, const WorldOptions& options, std::shared_ptr<comm::Rendezvous> rendezvous);

  ProcessGroup make_group(const std::string& name, int rank, int size, at::DeviceType device) const;

  LaunchEnv env_;
  WorldOptions options_;
  at::Device device_;
  int threads_ = 0;
  std::shared_ptr<CommunicationCounter> counter_;
  std::shared_ptr<comm::Rendezvous> rendezvous_;
  ProcessGroup group_, host_group_;
  std::map<std::pair<std::vector<int>, std::string>, ProcessGroup> groups_;
  std::map<std::string, std::shared_ptr<comm::HostMemory>> host_memories_;
  int64_t next_exchange_ = 0;
};

/// Runs `work` as this process's rank: under torchrun, mpirun, srun or pardiff's own launcher, or alone. With
/// PARDIFF_NPROC_PER_NODE=N and no launcher it first starts this program N times, once per rank.
/// What `work` throws is printed once for all ranks, and all ranks end.
/// Returns the process's exit code: 0 done, 1 failed, 2 usage.
int run(const std::function<void(World&)>& work, const WorldOptions& options = {});

/// Prints, once for all ranks of this run, what failed before there was a World (a command line, say).
/// Returns the process's exit code: 1 failed, 2 usage.
int report_failure(const std::exception& error);

/// Runs `work` on `size` ranks that are threads of this process. Throws: the first error of any rank.
int run_as_threads(int size, const std::function<void(World&)>& work, const WorldOptions& options = {});

/// Starts this program again as `size` ranks of this machine, with the same arguments, and waits for them. Whatever
/// ends one of them or this process ends them all. Returns the exit code: 0, the first failed rank's, or 128 + n when
/// signal n ended this process.
int launch_ranks(int size, const std::vector<std::string>& arguments);

}  // namespace pardiff
