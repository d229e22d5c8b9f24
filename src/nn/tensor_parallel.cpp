#include <ATen/ATen.h>
#include <pardiff/nn/tensor_parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

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

// [ranks, ...x's]
at::Tensor gathered(const at::Tensor& x, const ProcessGroup& group) {
  const auto own = x.contiguous();
  auto shape = own.sizes().vec();
  shape.insert(shape.begin(), group.size());
  const auto all = at::empty(shape, own.options());
  all_gather(all, own, std::vector<int64_t>(static_cast<size_t>(group.size()), own.numel()), group).wait();
  return all;
}

struct GatherFromGroup : torch::autograd::Function<GatherFromGroup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const ProcessGroup& group) {
    context->saved_data["rank"] = static_cast<int64_t>(group.rank());
    return gathered(x, group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0].select(0, context->saved_data["rank"].toInt()), at::Tensor()};
  }
};

}  // namespace

at::Tensor whole_from_shards(const at::Tensor& shard, int64_t dim, const std::vector<int64_t>& blocks,
                             const ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  const auto all = gathered(shard, group);
  const int64_t sum = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  std::vector<at::Tensor> wholes;  // of the blocks
  int64_t start = 0;
  for (const auto block : blocks) {
    const int64_t size = shard.size(dim) * block / sum;
    wholes.push_back(all.narrow(dim + 1, start, size).movedim(0, dim).flatten(dim, dim + 1));
    start += size;
  }
  return at::cat(wholes, dim);
}

at::Tensor copy_to_group(const at::Tensor& x, const ProcessGroup& group) {
  if (group.size() == 1 || !at::GradMode::is_enabled() || !x.requires_grad()) return x;
  return CopyToGroup::apply(x, group);
}

at::Tensor reduce_from_group(const at::Tensor& x, const ProcessGroup& group) {
  if (group.size() == 1) return x;
  return ReduceFromGroup::apply(x, group);
}

at::Tensor gather_from_group(const at::Tensor& x, const ProcessGroup& group) {
  if (group.size() == 1) return x.unsqueeze(0);
  return GatherFromGroup::apply(x, group);
}

}  // namespace pardiff::nn
