#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/comm/process_group.h>

#include <cstdint>
#include <vector>

namespace pardiff::nn {

enum class ShardStyle { kWhole, kColumn, kRow };

/// What a Linear holds of its weight, and with whom it shares the rest.
struct LinearSharding {
  ShardStyle style = ShardStyle::kWhole;
  ProcessGroup group;
  /// Proportional sizes of the blocks that are cut by themselves, along the dimension that is cut.
  std::vector<int64_t> blocks = {1};
};

/// The identity; its backward sums the gradient over `group` (each rank computed with its own columns only).
at::Tensor copy_to_group(const at::Tensor& x, const ProcessGroup& group);
/// The sum over `group`; its backward is the identity.
at::Tensor reduce_from_group(const at::Tensor& x, const ProcessGroup& group);
/// Every rank's `x`, one after the other; its backward takes the own one's gradient, which must be equal on all ranks.
/// Shapes: x alike on all ranks; returns [ranks, ...x's].
at::Tensor gather_from_group(const at::Tensor& x, const ProcessGroup& group);

/// The whole of a tensor of which every rank holds its slice of each of `blocks` along `dim`.
/// Collective: every rank of `group`. Shapes: as `shard`, with dimension `dim` times the ranks.
/// Cost: one all_gather; no gradient is recorded.
at::Tensor whole_from_shards(const at::Tensor& shard, int64_t dim, const std::vector<int64_t>& blocks,
                             const ProcessGroup& group);

}  // namespace pardiff::nn
