#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/nn/norm.h>

#include <cstdint>
#include <vector>

namespace pardiff::nn {

/// The rotation of every pair of channels at every position, as complex numbers of length 1.
/// Source: Su et al. 2021, arXiv 2104.09864.
struct RotaryTable {
  at::Tensor rotation;  // complex64 [S, head_dim / 2]

  /// Shapes: [S, head_dim], every value twice, for the two channels of a pair.
  at::Tensor cosines() const;
  at::Tensor sines() const;
  /// The rows [start, start + length).
  RotaryTable rows(int64_t start, int64_t length) const;
};

/// Pair k of the channels of axis a turns by id[a] theta^(-2k / axes_dims[a]).
/// Shapes: ids [S, axes]; the table has head_dim = sum(axes_dims).
/// Precision: angles in float64, the table in float32.
/// Throws: ShapeError if ids do not have one column per axis.
RotaryTable rotary_table(const at::Tensor& ids, const std::vector<int64_t>& axes_dims, double theta = 10000.0);

/// Turns the channel pairs (0, 1), (2, 3), ... of every head.
/// Shapes: x [B, S, H, head_dim]; returns the same.
/// Precision: float32 inside (float64 stays), cast back to x's dtype.
at::Tensor rotate(const at::Tensor& x, const RotaryTable& table);

/// rotate(cat(first, second)) along the sequence, without a copy between the two when no gradient is recorded.
/// Shapes: first [B, S1, H, head_dim], second [B, S2, H, head_dim]; returns [B, S1 + S2, H, head_dim].
at::Tensor rotate_joint(const at::Tensor& first, const at::Tensor& second, const RotaryTable& table);

/// rotate(norm(x)), in one pass over x's own memory where `kernels::may_fuse_heads` allows it.
/// Shapes: x [B, S, H, head_dim], given away; returns the same.
at::Tensor norm_and_rotate(RMSNorm& norm, at::Tensor x, const RotaryTable& table);

/// Heads [B, S, H, head_dim] and the norm that goes before their rotation.
struct UnnormedHeads {
  RMSNorm& norm;
  at::Tensor x;
};

/// rotate_joint(first.norm(first.x), second.norm(second.x)), each in one pass where `norm_and_rotate` would take one.
/// Shapes: first [B, S1, H, head_dim], second [B, S2, H, head_dim]; returns [B, S1 + S2, H, head_dim].
at::Tensor norm_and_rotate_joint(const UnnormedHeads& first, const UnnormedHeads& second, const RotaryTable& table);

}  // namespace pardiff::nn
