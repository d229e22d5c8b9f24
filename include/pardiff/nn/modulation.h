#pragma once
#include <pardiff/nn/linear.h>
#include <pardiff/nn/parameter.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <vector>

namespace pardiff::nn {

/// The weights that turn a conditioning vector into shifts, scales and gates; see `modulations`.
class ModulationImpl : public torch::nn::Module {
 public:
  ModulationImpl(int64_t dim, int64_t chunks, const ParameterOptions& parameters = {});

  int64_t chunks() const { return chunks_; }

  Linear linear;

 private:
  int64_t chunks_;
};
TORCH_MODULE(Modulation);

/// Shifts, scales and gates of several layers for one condition: for each layer the chunks of its `linear`(condition).
/// The only place where a model's modulation is computed.
/// Collective: if the layers are column-parallel, their group. They then share one all_gather here and one all_reduce
/// in backward, however many they are.
/// Shapes: condition [B, dim], already through SiLU; returns for each layer its `chunks` tensors [B, 1, dim].
/// Precision: each `rows_at_once` rows come out as they would without the others; 0: all rows are multiplied together.
std::vector<std::vector<at::Tensor>> modulations(const std::vector<Modulation>& layers, const at::Tensor& condition,
                                                 int64_t rows_at_once = 0);

/// LayerNorm(x) (1 + scale) + shift, the norm without weights.
/// Shapes: x [B, S, dim], shift and scale [B, 1, dim]; returns x's.
/// Precision: float32 inside.
/// Cost: one pass over x for a batch of one, two for more.
at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps = 1e-6);

/// x + gate y. When no gradient is recorded the result takes over y's memory: pass the fresh result of a layer, by
/// move. Shapes: x, y [B, S, dim], gate [B, 1, dim]; returns x's. Cost: one pass.
at::Tensor gated_residual(const at::Tensor& x, const at::Tensor& gate, at::Tensor y);

}  // namespace pardiff::nn
