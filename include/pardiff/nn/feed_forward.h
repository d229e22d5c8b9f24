#pragma once
#include <pardiff/nn/linear.h>
#include <pardiff/nn/parameter.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace pardiff::nn {

/// net.2(gelu_tanh(net.0.proj(x))), in two steps, so that the last Linears of two feed-forwards can share a reduction.
/// Shapes: x [..., dim]; returns [..., dim].
class FeedForwardImpl : public torch::nn::Module {
 public:
  FeedForwardImpl(int64_t dim, int64_t hidden_dim, const ParameterOptions& parameters = {});

  at::Tensor forward(const at::Tensor& x);
  /// What enters `output`. Shapes: returns [..., hidden_dim], or this rank's slice of it under tensor parallelism.
  at::Tensor hidden(const at::Tensor& x);

  Linear projection{nullptr}, output{nullptr};  // net.0.proj and net.2
};
TORCH_MODULE(FeedForward);

}  // namespace pardiff::nn
