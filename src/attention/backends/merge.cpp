#include <ATen/ATen.h>
#include <pardiff/attention/backend.h>

#include <limits>
#include <utility>

namespace pardiff {
namespace {

// Two rows without keys have no weight: -inf - -inf would be NaN.
at::Tensor weight_of(const at::Tensor& part, const at::Tensor& whole, at::ScalarType dtype) {
  constexpr double kNoKey = -std::numeric_limits<double>::infinity();
  return (part - whole).exp().masked_fill(whole == kNoKey, 0).unsqueeze(-1).to(dtype);
}

}  // namespace

KernelOutput AttentionBackend::forward_onto(KernelOutput seen, const KernelInputs& inputs) const {
  const auto part = forward(inputs);
  const auto dtype = seen.out.scalar_type();
  const auto part_lse = part.lse.to(at::kDouble);
  const auto lse = at::logaddexp(seen.lse, part_lse);
  return {seen.out * weight_of(seen.lse, lse, dtype) + part.out.to(dtype) * weight_of(part_lse, lse, dtype), lse};
}

}  // namespace pardiff
