#include "support/plain_attention.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <limits>

namespace pardiff::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Scores without the hidden ones' meaning, and which are hidden; both [B, H, Sq, Skv].
struct Scores {
  at::Tensor values, hidden;
};

Scores scores_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& mask, bool is_causal,
                 std::optional<double> scale) {
  const int64_t copies = key.size(2) > 0 ? query.size(2) / key.size(2) : 1;
  const auto q = query.to(at::kDouble).transpose(1, 2);
  const auto k = key.to(at::kDouble).repeat_interleave(copies, 2).transpose(1, 2);
  auto values = q.matmul(k.transpose(2, 3)) * scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  auto hidden = at::zeros(values.sizes(), at::kBool);
  if (mask.defined()) {
    const auto wide = mask.dim() == 2 ? mask.unsqueeze(1).unsqueeze(1) : mask;
    if (wide.scalar_type() == at::kBool) {
      hidden = hidden.logical_or(wide.logical_not());
    } else {
      hidden = hidden.logical_or(wide == -kInfinity);
      values = values + wide.to(at::kDouble).masked_fill(wide == -kInfinity, 0);
    }
  }
  if (is_causal) hidden = hidden.logical_or(at::ones({query.size(1), key.size(1)}, at::kBool).triu(1));
  return {values, hidden};
}

}  // namespace

at::Tensor random_normal(std::initializer_list<int64_t> shape, uint64_t seed, at::ScalarType dtype) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::TensorOptions().dtype(at::kDouble))
      .to(dtype);
}

at::Tensor plain_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& mask, bool is_causal, std::optional<double> scale) {
  if (query.numel() == 0 || key.numel() == 0) {
    // Still a function of its inputs, so that their gradients are zeros rather than undefined.
    return query.to(at::kDouble) * 0 + key.sum() * 0 + value.sum() * 0;
  }
  const auto [values, hidden] = scores_of(query, key, mask, is_causal, scale);
  const auto visible = hidden.logical_not().to(at::kDouble);
  const auto largest = values.detach().masked_fill(hidden, -1e300).amax(-1, true);
  const auto weights = (values - largest).masked_fill(hidden, 0).exp() * visible;
  const auto sums = weights.sum(-1, true);
  const auto probabilities = weights / sums.masked_fill(sums == 0, 1);
  const auto v = value.to(at::kDouble).repeat_interleave(query.size(2) / key.size(2), 2).transpose(1, 2);
  return probabilities.matmul(v).transpose(1, 2);
}

at::Tensor plain_lse(const at::Tensor& query, const at::Tensor& key, const at::Tensor& mask, bool is_causal,
                     std::optional<double> scale) {
  const auto [values, hidden] = scores_of(query, key, mask, is_causal, scale);
  const auto visible = values.masked_fill(hidden, -kInfinity);
  const auto dead = hidden.all(-1);
  return visible.logsumexp(-1).masked_fill(dead, -kInfinity).transpose(1, 2);
}

}  // namespace pardiff::testing
