#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/attention/attention.h>
#include <pardiff/nn/boundary.h>
#include <pardiff/nn/linear.h>
#include <pardiff/parallel/plan.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>

#include <vector>

namespace pardiff::testing {

constexpr int64_t kToyDim = 24, kToyHeadDim = 3, kToyHeads = 8;

/// Self-attention, cross-attention to a context that every rank holds, feed-forward. Heads follow from the width of the
/// projections, which under tensor parallelism is a slice.
struct ToyBlockImpl : torch::nn::Module {
  ToyBlockImpl();
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& context, const SequenceLayout& tokens);

  nn::Linear to_qkv, to_out, to_query, to_key_value, cross_out, widen, narrow;
  Attention self_attention, cross_attention;
};
TORCH_MODULE(ToyBlock);

/// A learnt table of positions, whose output is cut where it leaves.
struct ToyPositionsImpl : torch::nn::Module {
  ToyPositionsImpl();
  at::Tensor forward(int64_t length);

  at::Tensor table;
  Boundary boundary;
};
TORCH_MODULE(ToyPositions);

struct ToyInputs {
  at::Tensor hidden_states;       // [B, S, dim]
  at::Tensor context;             // [B, T, dim], whole on every rank
  std::vector<at::Tensor> sides;  // a scale [B, S, 1] and a shift [S, 1, dim]
};

/// Somebody's own model, in float64.
struct ToyModelImpl : torch::nn::Module {
  ToyModelImpl();
  /// Returns [B, S, dim].
  at::Tensor forward(const ToyInputs& inputs);

  Boundary boundary;
  ToyPositions positions;
  torch::nn::ModuleList blocks;
  nn::Linear proj_out;
};
TORCH_MODULE(ToyModel);

/// The same weights for the same seed.
ToyModel make_toy(uint64_t seed);
ToyInputs toy_inputs(int64_t length, uint64_t seed);
ContextParallelPlan toy_context_plan();
TensorParallelPlan toy_tensor_plan();

/// The output and all gradients of sum(weight * output), weight fixed by the seed of the inputs.
struct ToyRun {
  at::Tensor output, grad_hidden_states, grad_context;
  std::map<std::string, at::Tensor> gradients;
};
ToyRun run_toy(ToyModel& model, const ToyInputs& inputs);

}  // namespace pardiff::testing
