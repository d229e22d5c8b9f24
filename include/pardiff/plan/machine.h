#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace pardiff::plan {

/// How fast bytes leave a rank for others.
struct Link {
  double bytes_per_s = 0;
  double latency_s = 0;  // of one operation, however small
};

/// A kind of machine, as far as the time of a step and its memory depend on it. All of it is data: see
/// data/machines.json and docs/planner.md.
struct Machine {
  std::string name{};         // "l20"
  std::string description{};  // "NVIDIA L20, PCIe"

  /// Most floating-point operations a second in products of matrices.
  double half_flops = 0, single_flops = 0;
  /// What of that a forward pass reaches in its products, and in its attention.
  double efficiency = 1, attention_efficiency = 1;
  /// A product computes whole tiles of so many rows.
  int64_t row_tile = 128;

  double memory_bytes = 0;
  /// All ranks of a host draw on the one memory.
  bool memory_is_shared = false;
  /// Reading weights, packing, merging.
  double memory_bytes_per_s = 0;
  /// Norms, activations, rotary embedding; 0: their time is within `efficiency`.
  double pass_bytes_per_s = 0;

  int ranks_per_host = 8;
  Link link{};     // within a host
  Link network{};  // between hosts, of each rank
  /// Operations that are faster or slower than `link`, by the counter's names ("all_to_all", "send", ...).
  std::map<std::string, Link> operations{};
  /// The share of a transfer that passes while the rank computes, if there is enough to compute.
  double overlap = 1;

  /// The host's time for one operation on the device.
  double launch_s = 0;
  /// The device runs behind the host, so that only the slower of the two shows.
  bool asynchronous = true;

  /// Throws: ConfigError for a dtype that is neither half nor single precision.
  double flops(at::ScalarType dtype) const;
  /// As a file of kinds has it: {"kinds": [...]}.
  std::string to_json() const;
};

/// The kinds that a file holds. Throws: CheckpointError naming file, kind and key for what is missing or no number.
std::vector<Machine> machines_in(const std::filesystem::path& file);

}  // namespace pardiff::plan
