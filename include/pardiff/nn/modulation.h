#pragma once
#include <pardiff/nn/linear.h>
#include <pardiff/nn/parameter.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <vector>

namespace pardiff::nn {

/// Turns a conditioning vector into shifts, scales and gates: the chunks of `linear`(condition).
/// The only place where a model's modulation is computed.
/// Shapes: condition [B, dim], already through SiLU; returns `chunks` tensors [B, 1, dim].
class ModulationImpl : public torch::nn::Module {
 public:
  ModulationImpl(int64_t dim, int64_t chunks, const ParameterOptions& parameters = {});

  std::vector<at::Tensor> forward(const at::Tensor& condition);

  Linear linear;

 private:
  int64_t chunks_;
};
TORCH_MODULE(Modulation);

/// LayerNorm(x) (1 + scale) + shift, the norm without weights.
/// Shapes: x [B, S, dim], shift and scale [B, 1, dim]; returns x's.
/// Precision: float32 inside.
/// Cost: one pass over x for a batch of one, two for more.
at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps = 1e-6);

/// x + gate y. When no gradient is recorded the result takes over y's memory: pass the fresh result of a layer, by
/// move. Shapes: x, y [B, S, dim], gate [B, 1, dim]; returns x's. Cost: one pass.
at::Tensor gated_residual(const at::Tensor& x, const at::Tensor& gate, at::Tensor y);

}  // namespace pardiff::nn
