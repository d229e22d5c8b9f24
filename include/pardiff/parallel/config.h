#pragma once
#include <pardiff/parallel/mesh.h>

#include <optional>
#include <string>
#include <vector>

namespace pardiff {

/// Cuts the token sequence among ring_degree x ulysses_degree ranks.
/// Names and defaults are those of diffusers, except that the ring rotates by default.
struct ContextParallelConfig {
  /// Ranks that pass K/V blocks around; unset: 1.
  std::optional<int> ring_degree{};
  /// Ranks that exchange heads for tokens; unset: 1.
  std::optional<int> ulysses_degree{};
  /// Merge partial results, and add up gradients of K and V, in at least float32.
  bool convert_to_fp32 = true;
  /// "alltoall" passes blocks from rank to rank with the next one in flight; "allgather" collects all of K and V first.
  std::string rotate_method = "alltoall";
  /// A mesh that has axes named ring and ulysses, and may have others.
  std::optional<Mesh> mesh{};
  /// Any sequence length and any number of heads under Ulysses.
  bool ulysses_anything = false;
  /// Any sequence length under ring.
  bool ring_anything = false;

  int ring() const { return ring_degree.value_or(1); }
  int ulysses() const { return ulysses_degree.value_or(1); }

  /// Pure: looks at nothing but the fields. Throws: ConfigError, one rule and one message each.
  void validate() const;
};

/// Cuts the weights of every layer among tp_degree ranks.
struct TensorParallelConfig {
  int tp_degree = 1;
  /// A mesh with an axis named tp, whose size is then the degree; it may have other axes.
  std::optional<Mesh> mesh{};

  int degree() const { return mesh ? mesh->size("tp") : tp_degree; }
  void validate() const;
};

/// Everything at once; what is unset stays whole. The mesh is dp, fsdp, cfg, ring, ulysses, tp, outermost first.
struct ParallelConfig {
  std::optional<ContextParallelConfig> context_parallel_config{};
  std::optional<TensorParallelConfig> tensor_parallel_config{};
  /// 2: the two passes of true classifier-free guidance run on two groups of ranks.
  int cfg_degree = 1;
  /// Groups that make different pictures.
  int dp_degree = 1;
  /// Groups that make different pictures and share the weights' storage.
  int fsdp_degree = 1;
  /// Mesh axes over whose ranks the parameters are spread, each rank keeping 1/N of every block.
  std::vector<std::string> shard_weights_over{};

  /// The mesh axes over which weights are sharded: shard_weights_over, and fsdp where it has a degree.
  std::vector<std::string> weight_axes() const;
  /// Ranks that the degrees multiply to.
  int ranks() const;
  /// Pure. Throws: ConfigError, one rule and one message each.
  void validate() const;
  /// The mesh of the degrees, seen from `rank`. Throws: ConfigError if the degrees do not multiply to `world_size`, or
  /// a custom mesh disagrees with them.
  Mesh mesh(int rank, int world_size) const;
};

}  // namespace pardiff
