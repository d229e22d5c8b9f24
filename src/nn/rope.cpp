#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/nn/rope.h>

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
  auto joint = at::empty({first.size(0), first_length + second_length, first.size(2), first.size(3)}, first.options());
  rotate_into(joint.narrow(1, 0, first_length), first, table.rows(0, first_length));
  rotate_into(joint.narrow(1, first_length, second_length), second, table.rows(first_length, second_length));
  return joint;
}

}  // namespace pardiff::nn
