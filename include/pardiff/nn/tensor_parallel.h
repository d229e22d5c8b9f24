#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/comm/process_group.h>

namespace pardiff::nn {

enum class ShardStyle { kWhole, kColumn, kRow };

/// What a Linear holds of its weight, and with whom it shares the rest.
struct LinearSharding {
  ShardStyle style = ShardStyle::kWhole;
  ProcessGroup group;
};

/// The identity; its backward sums the gradient over `group` (each rank computed with its own columns only).
at::Tensor copy_to_group(const at::Tensor& x, const ProcessGroup& group);
/// The sum over `group`; its backward is the identity.
at::Tensor reduce_from_group(const at::Tensor& x, const ProcessGroup& group);

}  // namespace pardiff::nn
