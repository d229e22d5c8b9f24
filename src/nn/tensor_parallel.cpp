#include <ATen/ATen.h>
#include <pardiff/nn/tensor_parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/capsule.h"

namespace pardiff::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor summed(const at::Tensor& x, const ProcessGroup& group) {
  const auto sum = x.clone(at::MemoryFormat::Contiguous);
  all_reduce(sum, group).wait();
  return sum;
}

struct CopyToGroup : torch::autograd::Function<CopyToGroup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ProcessGroup& group) {
    context->saved_data["group"] = enclose(group);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {summed(gradients[0], enclosed_as<ProcessGroup>(context->saved_data["group"])), at::Tensor()};
  }
};

struct ReduceFromGroup : torch::autograd::Function<ReduceFromGroup> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const ProcessGroup& group) {
    return summed(x, group);
  }
  static variable_list backward(AutogradContext*, variable_list gradients) { return {gradients[0], at::Tensor()}; }
};

}  // namespace

at::Tensor copy_to_group(const at::Tensor& x, const ProcessGroup& group) {
  if (group.size() == 1 || !at::GradMode::is_enabled() || !x.requires_grad()) return x;
  return CopyToGroup::apply(x, group);
}

at::Tensor reduce_from_group(const at::Tensor& x, const ProcessGroup& group) {
  if (group.size() == 1) return x;
  return ReduceFromGroup::apply(x, group);
}

}  // namespace pardiff::nn
