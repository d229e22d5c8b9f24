#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/nn/recompute.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/capsule.h"
#include "nn/rerun.h"

namespace pardiff::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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
    return run_without_history(segment, inputs.vec());
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
    const auto found =
        rerun_for_gradients(enclosed_as<Segment>(context->saved_data["segment"]), inputs, wanted, gradients);
    variable_list result(kept.size() + 1);  // one for the segment
    for (size_t i = 0; i < places.size(); ++i) result[places[i]] = found[i];
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> recomputed(const Segment& segment, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& parameters) {
  if (!at::GradMode::is_enabled()) return segment(inputs);
  return Recompute::apply(at::TensorList(inputs), at::TensorList(parameters), segment);
}

}  // namespace pardiff::nn
