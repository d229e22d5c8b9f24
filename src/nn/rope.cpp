#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/nn/rope.h>

#include "nn/kernels/choice.h"
#include "nn/kernels/elementwise.h"

namespace pardiff::nn {
namespace {

// [..., D] -> complex [..., D/2], over the same memory if it can be.
at::Tensor as_pairs(const at::Tensor& x) { return at::view_as_complex(x.unflatten(-1, {-1, 2})); }

// [S, D/2] -> [S, 1, D/2]: the same for every head, in the precision of the complex tensor it multiplies.
at::Tensor for_heads(const RotaryTable& table, const at::Tensor& pairs) {
  return table.rotation.unsqueeze(1).to(pairs.scalar_type());
}

at::Tensor in_compute_precision(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

// Writes the rotated `x` into `out`, which has its shape and dtype.
void rotate_into(const at::Tensor& out, const at::Tensor& x, const RotaryTable& table) {
  const auto wide = in_compute_precision(x);
  const auto pairs = as_pairs(wide);
  if (wide.scalar_type() == x.scalar_type()) {
    auto out_pairs = as_pairs(out);
    at::mul_out(out_pairs, pairs, for_heads(table, pairs));
  } else {
    as_pairs(wide).mul_(for_heads(table, pairs));  // `wide` is a copy made above
    out.copy_(wide);
  }
}

bool may_fuse(RMSNormImpl& norm, const at::Tensor& x) {
  return norm.edge().passes_through() && norm.rounding() == RmsRounding::kOnce && x.dim() == 4 && x.size(3) % 2 == 0 &&
         kernels::may_fuse_heads(x, norm.weight);
}

// Writes norm and rotation of `x` into the tokens [start, start + S) of `joint` [B, tokens, H, head_dim].
void fuse_into(const at::Tensor& joint, int64_t start, RMSNormImpl& norm, const at::Tensor& x,
               const RotaryTable& table) {
  if (x.numel() == 0) return;
  const auto turns = at::view_as_real(table.rotation.contiguous());
  kernels::normed_rotation(x.const_data_ptr<float>(), norm.weight.const_data_ptr<float>(),
                           turns.const_data_ptr<float>(), joint.mutable_data_ptr<float>() + start * joint.stride(1),
                           {x.size(0), x.size(1), x.size(2), x.size(3), joint.stride(0)}, norm.eps());
}

at::Tensor empty_joint(const at::Tensor& first, const at::Tensor& second) {
  return at::empty({first.size(0), first.size(1) + second.size(1), first.size(2), first.size(3)}, first.options());
}

}  // namespace

at::Tensor RotaryTable::cosines() const { return at::real(rotation).repeat_interleave(2, 1); }
at::Tensor RotaryTable::sines() const { return at::imag(rotation).repeat_interleave(2, 1); }
RotaryTable RotaryTable::rows(int64_t start, int64_t length) const { return {rotation.narrow(0, start, length)}; }

RotaryTable rotary_table(const at::Tensor& ids, const std::vector<int64_t>& axes_dims, double theta) {
  const auto axes = static_cast<int64_t>(axes_dims.size());
  check<ShapeError>(ids.dim() == 2 && ids.size(1) == axes, "position ids have the shape ", ids.sizes(),
                    ". Give [tokens, ", axes, "]: one column per rotary axis.");
  const auto positions = ids.to(at::kDouble);
  std::vector<at::Tensor> angles;
  for (int64_t axis = 0; axis < axes; ++axis) {
    const auto exponents = at::arange(0, axes_dims[axis], 2, positions.options()) / axes_dims[axis];
    angles.push_back(at::outer(positions.select(1, axis), at::pow(theta, exponents).reciprocal()));
  }
  const auto angle = at::cat(angles, 1);  // [S, head_dim / 2]
  return {at::complex(angle.cos().to(at::kFloat), angle.sin().to(at::kFloat))};
}

at::Tensor rotate(const at::Tensor& x, const RotaryTable& table) {
  const auto pairs = as_pairs(in_compute_precision(x));
  return at::view_as_real(pairs * for_heads(table, pairs)).flatten(-2).to(x.scalar_type());
}

at::Tensor rotate_joint(const at::Tensor& first, const at::Tensor& second, const RotaryTable& table) {
  if (at::GradMode::is_enabled()) return rotate(at::cat({first, second}, 1), table);
  const int64_t first_length = first.size(1), second_length = second.size(1);
  const auto joint = empty_joint(first, second);
  rotate_into(joint.narrow(1, 0, first_length), first, table.rows(0, first_length));
  rotate_into(joint.narrow(1, first_length, second_length), second, table.rows(first_length, second_length));
  return joint;
}

at::Tensor norm_and_rotate(RMSNorm& norm, at::Tensor x, const RotaryTable& table) {
  if (!may_fuse(*norm, x)) return rotate(norm->forward(x), table);
  fuse_into(x, 0, *norm, x, table);
  return x;
}

at::Tensor norm_and_rotate_joint(const UnnormedHeads& first, const UnnormedHeads& second, const RotaryTable& table) {
  if (!may_fuse(*first.norm, first.x) || !may_fuse(*second.norm, second.x)) {
    return rotate_joint(first.norm->forward(first.x), second.norm->forward(second.x), table);
  }
  const int64_t first_length = first.x.size(1), second_length = second.x.size(1);
  auto joint = empty_joint(first.x, second.x);
  fuse_into(joint, 0, *first.norm, first.x, table.rows(0, first_length));
  fuse_into(joint, first_length, *second.norm, second.x, table.rows(first_length, second_length));
  return joint;
}

}  // namespace pardiff::nn
