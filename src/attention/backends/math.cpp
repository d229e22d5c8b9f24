#include <ATen/ATen.h>

#include <limits>

#include "attention/backends/backends.h"

namespace pardiff {
namespace {

// Plain tensor algebra in at least float32: the yardstick for the kernels.
class MathAttention : public AttentionBackend {
 public:
  std::string name() const override { return "math"; }
  std::string description() const override { return "plain tensor algebra, any device; the yardstick, slow"; }
  std::string why_not(const KernelNeeds&) const override { return ""; }

  KernelOutput forward(const KernelInputs& inputs) const override {
    const auto scores = masked_scores(inputs);                // [B, H, Sq, Skv]
    const auto lse = scores.logsumexp(-1, /*keepdim=*/true);  // [B, H, Sq, 1]
    const auto out = probabilities(scores, lse).matmul(wide(inputs.value));
    const auto dtype = inputs.is_part ? out.scalar_type() : inputs.query.scalar_type();
    return {out.transpose(1, 2).to(dtype), lse.squeeze(-1).transpose(1, 2)};
  }

  KernelGradients backward(const at::Tensor& grad_out, const KernelInputs& inputs,
                           const KernelOutput& final) const override {
    const auto p = probabilities(masked_scores(inputs), final.lse.transpose(1, 2).unsqueeze(-1));  // [B, H, Sq, Skv]
    const auto grad = wide(grad_out), out = wide(final.out);                                       // [B, H, Sq, D]
    const auto grad_value = p.transpose(2, 3).matmul(grad);
    const auto grad_p = grad.matmul(wide(inputs.value).transpose(2, 3));
    const auto grad_scores = p * (grad_p - (grad * out).sum(-1, /*keepdim=*/true)) * inputs.scale;
    const auto dtype = inputs.query.scalar_type();
    return {grad_scores.matmul(wide(inputs.key)).transpose(1, 2).to(dtype),
            grad_scores.transpose(2, 3).matmul(wide(inputs.query)).transpose(1, 2).to(dtype),
            grad_value.transpose(1, 2).to(dtype)};
  }

 private:
  // [B, S, H, D] -> [B, H, S, D] in at least float32
  static at::Tensor wide(const at::Tensor& x) {
    return x.transpose(1, 2).to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }

  static at::Tensor masked_scores(const KernelInputs& inputs) {
    auto scores = wide(inputs.query).matmul(wide(inputs.key).transpose(2, 3)) * inputs.scale;
    if (inputs.mask.defined()) scores = scores + inputs.mask;
    if (inputs.is_causal) {
      const auto hidden = at::ones({scores.size(2), scores.size(3)}, scores.options().dtype(at::kBool)).triu(1);
      scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    }
    return scores;
  }

  static at::Tensor probabilities(const at::Tensor& scores, const at::Tensor& lse) {
    // A row without any key: -inf - -inf would be NaN.
    return (scores - lse).exp().masked_fill(lse == -std::numeric_limits<double>::infinity(), 0);
  }
};

}  // namespace

const AttentionBackend& math_attention() {
  static const MathAttention backend;
  return backend;
}

}  // namespace pardiff
