#pragma once
#include <optional>
#include <string>

namespace pardiff {

/// What the environment says about this process among the ranks of a run.
struct LaunchEnv {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  /// The launcher keeps the rendezvous store itself; no rank starts one.
  bool store_is_served = false;
  /// "pardiff", "torchrun", "Open MPI", "Slurm" or "environment".
  std::string launcher;

  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT as torchrun sets them, or Open MPI's or Slurm's
  /// equivalents, which know no master: it is this machine, or the first of a Slurm step's, on a port of the job's own.
  /// Nothing of the kind set: no value.
  /// Throws: UsageError for half-set, contradictory or meaningless values.
  static std::optional<LaunchEnv> from_environment();
};

}  // namespace pardiff
