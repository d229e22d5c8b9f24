#include "nn/rerun.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace pardiff::nn {
namespace {

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach());
  return result;
}

}  // namespace

std::vector<at::Tensor> run_without_history(const Segment& segment, const std::vector<at::Tensor>& inputs) {
  // Layers round differently when no gradient is recorded.
  const at::AutoGradMode with_gradients(true);
  return detached(segment(detached(inputs)));
}

std::vector<at::Tensor> rerun_for_gradients(const Segment& segment, const std::vector<at::Tensor>& inputs,
                                            const std::vector<at::Tensor>& wanted,
                                            const std::vector<at::Tensor>& gradients) {
  const at::AutoGradMode with_gradients(true);
  const auto outputs = segment(inputs);
  std::vector<at::Tensor> used, used_gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
    used.push_back(outputs[i]);
    used_gradients.push_back(gradients[i]);
  }
  if (used.empty() || wanted.empty()) return std::vector<at::Tensor>(wanted.size());
  return torch::autograd::grad(used, wanted, used_gradients, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

}  // namespace pardiff::nn
