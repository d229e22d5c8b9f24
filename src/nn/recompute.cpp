#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/nn/recompute.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/capsule.h"

namespace pardiff::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

variable_list detached(const variable_list& tensors) {
  variable_list result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach());
  return result;
}

// Parameters are inputs of the node, so that the outer backward pass sees their gradients and decides what to do with
// them: accumulate, return or drop.
struct Recompute : torch::autograd::Function<Recompute> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, at::TensorList parameters,
                               const Segment& segment) {
    context->set_materialize_grads(false);  // an output without a gradient must not give parameters a zero one
    context->saved_data["segment"] = enclose(segment);
    context->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    auto kept = inputs.vec();
    kept.insert(kept.end(), parameters.begin(), parameters.end());
    context->save_for_backward(kept);
    // As a plain call would compute it: layers round differently when no gradient is recorded. What is recorded here
    // ends with this function.
    const at::AutoGradMode with_gradients(true);
    return detached(segment(detached(inputs.vec())));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    check<ConfigError>(!at::GradMode::is_enabled(),
                       "recomputed activations have no second derivative. Leave create_graph off, or call "
                       "disable_gradient_checkpointing.");
    const auto kept = context->get_saved_variables();
    const auto count = static_cast<size_t>(context->saved_data["inputs"].toInt());
    variable_list inputs, wanted;
    std::vector<size_t> places;  // of the wanted ones among all
    for (size_t i = 0; i < kept.size(); ++i) {
      const bool needed = context->needs_input_grad(i);
      if (i < count) inputs.push_back(kept[i].detach().set_requires_grad(needed));
      if (!needed) continue;
      wanted.push_back(i < count ? inputs[i] : kept[i]);
      places.push_back(i);
    }
    const auto found = gradients_of(enclosed_as<Segment>(context->saved_data["segment"]), inputs, wanted, gradients);
    variable_list result(kept.size() + 1);  // one for the segment
    for (size_t i = 0; i < places.size(); ++i) result[places[i]] = found[i];
    return result;
  }

 private:
  static variable_list gradients_of(const Segment& segment, const variable_list& inputs, const variable_list& wanted,
                                    const variable_list& gradients) {
    const at::AutoGradMode with_gradients(true);
    const auto outputs = segment(inputs);
    variable_list used, used_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      used.push_back(outputs[i]);
      used_gradients.push_back(gradients[i]);
    }
    if (used.empty()) return variable_list(wanted.size());
    return torch::autograd::grad(used, wanted, used_gradients, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                                 /*allow_unused=*/true);
  }
};

}  // namespace

std::vector<at::Tensor> recomputed(const Segment& segment, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& parameters) {
  if (!at::GradMode::is_enabled()) return segment(inputs);
  return Recompute::apply(at::TensorList(inputs), at::TensorList(parameters), segment);
}

}  // namespace pardiff::nn
