#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/backends/backend.h"
#include "pardiff/comm/launch_env.h"
#include "pardiff/comm/world.h"

namespace pardiff::comm {

/// Where the ranks of a run meet before they have groups: a small store of texts, and the maker of groups.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  virtual void publish(const std::string& key, const std::string& value) = 0;
  /// Waits for the key. Throws: CommError when it does not come.
  virtual std::string fetch(const std::string& key) = 0;
  virtual bool has(const std::string& key) = 0;
  /// Adds to a counter and returns its new value.
  virtual int64_t count(const std::string& key, int64_t add) = 0;
  virtual std::shared_ptr<GroupBackend> make_group(const std::string& name, int rank, int size, at::Device device) = 0;
};

/// Over TCP, as torchrun's agent or rank 0 serves it.
std::shared_ptr<Rendezvous> meet_over_tcp(const LaunchEnv& env, const WorldOptions& options);

/// Whether this rank is the one that reports. `is_consequence`: its error only says that another rank is gone, so it
/// lets that one speak first. Returns false after the other has reported, or had time to.
bool claim_failure(Rendezvous& rendezvous, bool is_consequence);
/// Tells the others, and the launcher, that the claimed failure has been printed, and the exit code of the run.
void confirm_report(Rendezvous& rendezvous, int exit_code);
/// Keeps the store up for a moment after a failure, so that the other ranks can learn that it is reported.
void wait_for_claims(Rendezvous& rendezvous, int ranks);

/// Serves the store of ranks that this process starts.
class StoreServer {
 public:
  StoreServer();
  ~StoreServer();
  int port() const;
  /// True if no rank has claimed the report of a failure before; see claim_failure.
  bool claim_failure() const;
  /// The exit code of the failure that a rank has reported, if one has.
  std::optional<int> reported_exit_code() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The prefix of this program's keys in a store that others may use too.
std::string store_prefix();

}  // namespace pardiff::comm
