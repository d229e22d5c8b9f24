#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/nn/activation.h>
#include <pardiff/nn/embedding.h>

#include <cmath>

namespace pardiff::nn {

EmbeddingImpl::EmbeddingImpl(int64_t count, int64_t dim, const ParameterOptions& parameters)
    : torch::nn::Module("Embedding"), weight(register_parameter("weight", make_parameter({count, dim}, parameters))) {
  if (!parameters.allocate) return;
  at::NoGradGuard no_grad;
  weight.normal_();
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) {
  return edge_.leave(at::embedding(weight, edge_.enter("input", ids)));
}

at::Tensor sinusoid(const at::Tensor& times, int64_t dim) {
  check<ShapeError>(times.dim() == 1 && dim % 2 == 0, "a sinusoid of times ", times.sizes(), " in ", dim,
                    " dimensions. Give times of shape [batch] and an even dimension.");
  const int64_t half = dim / 2;
  // Large times multiply the last bit of a frequency. The exponents are rounded as in the reference; their exponentials
  // come from float64, because the float32 ones of the math library differ from processor to processor.
  const auto exponents = at::arange(half, times.options().dtype(at::kFloat)) * -std::log(10000.0) / half;
  const auto frequencies = exponents.to(at::kDouble).exp().to(at::kFloat);
  const auto angles = times.to(at::kFloat).unsqueeze(1) * frequencies;  // [B, dim/2]
  return at::cat({angles.cos(), angles.sin()}, 1);
}

ConditionEmbeddingImpl::ConditionEmbeddingImpl(int64_t in_dim, int64_t dim, const ParameterOptions& parameters)
    : torch::nn::Module("ConditionEmbedding"),
      linear_1(register_module("linear_1", Linear(in_dim, dim, LinearOptions{.parameters = parameters}))),
      linear_2(register_module("linear_2", Linear(dim, dim, LinearOptions{.parameters = parameters}))) {}

at::Tensor ConditionEmbeddingImpl::forward(const at::Tensor& x) {
  return linear_2->forward(nn::silu(linear_1->forward(x)));
}

}  // namespace pardiff::nn
