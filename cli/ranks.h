#pragma once
#include <pardiff/comm/launch_env.h>
#include <pardiff/parallel/config.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pardiff::cli {

class Flags;

/// The flags that say how many ranks there are and what they share.
struct RankFlags {
  std::optional<int64_t> nproc_per_node{};
  std::optional<int64_t> ring_degree{}, ulysses_degree{}, tp_degree{}, cfg_degree{}, dp_degree{}, fsdp_degree{};
  std::string shard_weights_over;  // axes, with commas between them
  bool ulysses_anything = false, ring_anything = false;
  std::string rotate_method = "alltoall";
  bool no_convert_to_fp32 = false;
  std::string parallel;           // "auto", or empty: the degrees say it
  std::filesystem::path machine;  // what `plan --calibrate` wrote; empty: measured

  void declare(Flags& flags);
  void declare_planning(Flags& flags);
  /// The flags that ask for `config`, in the place of what was given.
  void take(const ParallelConfig& config);
};

struct RankLayout {
  int ranks = 1;
  /// Local ranks that this process has to start, itself being none; 0: it is a rank itself.
  int to_start = 0;
  /// To be planned once the ranks are there (--parallel auto).
  bool is_automatic = false;
  /// Unset on one rank.
  std::optional<ParallelConfig> parallel{};

  /// "2 ranks: ulysses 2", "1 rank"
  std::string to_string() const;
};

/// Decides from the flags and what launched this process.
/// Throws: UsageError if degrees and ranks do not fit (it lists the layouts that do), or --nproc-per-node meets another
/// launcher.
RankLayout choose_layout(const RankFlags& flags, const std::optional<LaunchEnv>& env);

/// How this process was called, for launch_ranks.
std::vector<std::string> own_command_line();

/// The flags of every way to lay out `ranks` for one picture and one pass, for messages; at most a dozen.
std::vector<std::string> legal_layouts(int ranks);

}  // namespace pardiff::cli
