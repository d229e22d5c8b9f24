#pragma once
#include "attention/modes/call.h"

namespace pardiff::attention {

/// Attends from this rank's queries to the keys of every rank of call.ring, block by block, and merges the parts.
/// Collective: every rank of call.ring.
/// Shapes: query [B, Sq, H, D], key and value [B, Skv of this ring rank, Hkv, D] (of this rank's heads). Any size may
/// be 0. Precision: merged in at least float32 when call.convert_to_fp32; own block first, then those of ranks before.
/// Cost: size-1 hops of bytes(key) + bytes(value); at most two remote blocks resident when call.rotate.
KernelOutput ring_forward(const Call& call, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

/// The gradients, from the final result of the forward pass.
/// Collective: every rank of call.ring.
/// Cost: the blocks once more, and `size` hops of the gradients of one block in the accumulators' dtype.
KernelGradients ring_backward(const Call& call, const at::Tensor& grad_out, const at::Tensor& query,
                              const at::Tensor& key, const at::Tensor& value, const KernelOutput& final);

}  // namespace pardiff::attention
