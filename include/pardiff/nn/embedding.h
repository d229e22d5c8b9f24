#pragma once
#include <pardiff/nn/boundary.h>
#include <pardiff/nn/linear.h>
#include <pardiff/nn/parameter.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

namespace pardiff::nn {

/// A table of vectors: parameter `weight` [count, dim].
/// Shapes: ids [...], integers in 0..count-1; returns [..., dim].
class EmbeddingImpl : public torch::nn::Module, public EdgeOwner {
 public:
  EmbeddingImpl(int64_t count, int64_t dim, const ParameterOptions& parameters = {});

  at::Tensor forward(const at::Tensor& ids);

  PlannedEdge& edge() override { return edge_; }
  std::vector<std::string> argument_names() const override { return {"input"}; }

  at::Tensor weight;

 private:
  PlannedEdge edge_;
};
TORCH_MODULE(Embedding);

/// Sines and cosines of geometrically falling frequencies, cosines first.
/// Shapes: times [B]; returns [B, dim], dim even.
/// Precision: float32 whatever the dtype of `times`.
/// Source: Ho et al. 2020, arXiv 2006.11239 (with cosines first, and the exponent -ln(10000) k / (dim/2)).
at::Tensor sinusoid(const at::Tensor& times, int64_t dim = 256);

/// linear_2(silu(linear_1(x))): a conditioning vector out of a scalar's sinusoid or a pooled text state.
/// Shapes: x [B, in_dim]; returns [B, dim].
class ConditionEmbeddingImpl : public torch::nn::Module {
 public:
  ConditionEmbeddingImpl(int64_t in_dim, int64_t dim, const ParameterOptions& parameters = {});

  at::Tensor forward(const at::Tensor& x);

  Linear linear_1, linear_2;
};
TORCH_MODULE(ConditionEmbedding);

}  // namespace pardiff::nn
