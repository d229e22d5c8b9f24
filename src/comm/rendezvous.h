#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/backends/backend.h"
#include "pardiff/comm/launch_env.h"
#include "pardiff/comm/world.h"

namespace pardiff::comm {

class HostMemory;
class Liveness;

/// Where the ranks of a run meet before they have groups: a small store of texts, and the maker of groups.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  virtual void publish(const std::string& key, const std::string& value) = 0;
  /// Waits for the key. Throws: CommError when it does not come.
  virtual std::string fetch(const std::string& key) = 0;
  /// Adds to a counter and returns its new value.
  virtual int64_t count(const std::string& key, int64_t add) = 0;
  virtual std::shared_ptr<GroupBackend> make_group(const std::string& name, int rank, int size, at::Device device) = 0;
  /// The blocks that the ranks of this host have together under `key`; null: they have none, or this rank cannot open
  /// them. Waits for no rank but the one that makes them.
  virtual std::shared_ptr<HostMemory> host_memory(const std::string& /*key*/,
                                                  const std::vector<size_t>& /*block_bytes*/) {
    return nullptr;
  }
  /// Who watches over the ranks; null: ranks that are threads of one process need nobody.
  virtual Liveness* liveness() { return nullptr; }
};

/// Over TCP, as torchrun's agent or rank 0 serves it.
std::shared_ptr<Rendezvous> meet_over_tcp(const LaunchEnv& env, const WorldOptions& options);

/// Serves the store and the board of `ranks` ranks that this process starts.
class StoreServer {
 public:
  explicit StoreServer(int ranks);
  ~StoreServer();
  int port() const;
  /// Whether the launcher is to report a failure: no rank has done so, or claimed to and then not done it.
  bool must_report() const;
  /// The exit code of the failure that a rank has reported, if one has.
  std::optional<int> reported_exit_code() const;
  /// What a rank does, or did at last: "in all_gather of group 'world', step 3".
  std::string last_seen(int rank) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The prefix of this program's keys in a store that others may use too.
std::string store_prefix();

}  // namespace pardiff::comm
