#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/parallel/layout.h>

namespace pardiff::nn {

/// This rank's share of a whole tensor, cut along `dim`; a view.
/// Shapes: [..., S, ...] -> [..., S_rank, ...].
at::Tensor own_share(const at::Tensor& whole, int64_t dim, const SequenceLayout& layout, const ProcessGroup& group);
/// The whole tensor from every rank's share; a view whose dimension `dim` lies in front in memory.
/// Collective: every rank of `group`. Shapes: [..., S_rank, ...] -> [..., S, ...].
at::Tensor gather_shares(const at::Tensor& share, int64_t dim, const SequenceLayout& layout, const ProcessGroup& group);

}  // namespace pardiff::nn
