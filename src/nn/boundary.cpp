#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/nn/boundary.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/capsule.h"
#include "nn/token_shares.h"

namespace pardiff::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GatherRule {
  ProcessGroup group;
  SequenceLayout layout;
  int dim;
};

// Backward takes the own share of the gradient: with the same loss on every rank, the sum of a parameter's gradient
// over the ranks is then the exact one.
struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& local, const GatherRule& rule) {
    context->saved_data["rule"] = enclose(rule);
    return gather_shares(local, rule.dim, rule.layout, rule.group);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& rule = enclosed_as<GatherRule>(context->saved_data["rule"]);
    return {own_share(gradients[0], rule.dim, rule.layout, rule.group), at::Tensor()};
  }
};

int wrapped_dim(const std::string& what, int dim, const at::Tensor& tensor) {
  const int dims = static_cast<int>(tensor.dim());
  check<ShapeError>(dim >= -dims && dim < dims, what, " has ", dims, " dimensions, and the plan names dimension ", dim,
                    ". Correct the plan.");
  return dim < 0 ? dim + dims : dim;
}

void check_dims(const std::string& what, int expected, const at::Tensor& tensor) {
  check<ShapeError>(expected == 0 || tensor.dim() == expected, what, " has shape ", tensor.sizes(),
                    ", and the plan expects ", expected, " dimensions. Reshape it, or correct expected_dims.");
}

}  // namespace

void PlannedEdge::follow(std::string path, const ModulePlan& plan, std::shared_ptr<ContextShare> share) {
  path_ = std::move(path);
  inputs_ = plan.inputs();
  outputs_ = plan.outputs();
  share_ = std::move(share);
}

void PlannedEdge::attach(std::string path, std::shared_ptr<ContextShare> share) {
  path_ = std::move(path);
  share_ = std::move(share);
}

void PlannedEdge::release() { *this = PlannedEdge(); }

at::Tensor PlannedEdge::enter(const std::string& name, const at::Tensor& tensor) {
  if (!share_ || share_->keep_split) return tensor;
  for (const auto& [key, rules] : inputs_) {
    if (key.is_index() || key.name() != name) continue;
    check<ShapeError>(!rules.is_list(), "the plan treats '", name, "' of module '", path_,
                      "' as a list, and it is one tensor. Give one ContextParallelInput.");
    return split(path_ + "." + name, rules.specs().front(), tensor);
  }
  return tensor;
}

std::vector<at::Tensor> PlannedEdge::enter(const std::string& name, const std::vector<at::Tensor>& tensors) {
  if (!share_ || share_->keep_split) return tensors;
  for (const auto& [key, rules] : inputs_) {
    if (key.is_index() || key.name() != name) continue;
    check<ShapeError>(rules.specs().size() == tensors.size(), "the plan has ", rules.specs().size(), " entries for '",
                      name, "' of module '", path_, "', which holds ", tensors.size(),
                      " tensors. Give one ContextParallelInput per tensor.");
    std::vector<at::Tensor> shares;
    for (size_t i = 0; i < tensors.size(); ++i) {
      shares.push_back(split(text_of(path_, ".", name, ".", i), rules.specs()[i], tensors[i]));
    }
    return shares;
  }
  return tensors;
}

at::Tensor PlannedEdge::leave(const at::Tensor& tensor) {
  if (!share_ || share_->keep_split) return tensor;
  return leave(std::vector<at::Tensor>{tensor}).front();
}

std::vector<at::Tensor> PlannedEdge::leave(const std::vector<at::Tensor>& tensors) {
  if (!share_ || share_->keep_split) return tensors;
  auto left = tensors;
  for (const auto& [key, rules] : inputs_) {
    if (!key.is_index()) continue;
    check<ShapeError>(key.index() < static_cast<int>(left.size()), "the plan splits output ", key.index(),
                      " of module '", path_, "', which has ", left.size(), " outputs. Correct the index.");
    left[key.index()] = split(text_of(path_, ".", key.index()), rules.specs().front(), left[key.index()]);
  }
  if (outputs_.empty()) return left;
  check<ShapeError>(outputs_.size() == left.size(), "the plan gathers ", outputs_.size(), " outputs of module '", path_,
                    "', which has ", left.size(), ". Give one ContextParallelOutput per output.");
  for (size_t i = 0; i < left.size(); ++i)
    layout_to_gather(outputs_[i], left[i]);  // all checks before the first gather
  for (size_t i = 0; i < left.size(); ++i) left[i] = gather(outputs_[i], left[i]);
  return left;
}

SequenceLayout PlannedEdge::layout(const std::string& name) const {
  if (!share_) return {};
  if (share_->keep_split) {
    const auto kept = share_->kept.find(name);
    return kept == share_->kept.end() ? SequenceLayout() : kept->second;
  }
  const auto found = share_->layouts.find(path_ + "." + name);
  return found == share_->layouts.end() ? SequenceLayout() : found->second;
}

at::Tensor PlannedEdge::split(const std::string& key, const ContextParallelInput& rule, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    share_->layouts.erase(key);  // an optional argument left out in this call
    return tensor;
  }
  const std::string what = text_of("'", key.substr(key.front() == '.' ? 1 : 0), "'");
  check_dims(what, rule.expected_dims, tensor);
  const int dim = wrapped_dim(what, rule.split_dim, tensor);
  const int ranks = share_->group.size();
  check<ShapeError>(share_->length_any || tensor.size(dim) % ranks == 0, what, " has ", tensor.size(dim),
                    " tokens along dimension ", dim, ", which ", ranks, " ranks do not divide. Use ",
                    share_->lifting_flag, ", or another size.");
  const auto layout = SequenceLayout::split(tensor.size(dim), ranks);
  share_->layouts[key] = layout;
  return own_share(tensor, dim, layout, share_->group);
}

const SequenceLayout& PlannedEdge::layout_to_gather(const ContextParallelOutput& rule, const at::Tensor& tensor) const {
  const std::string what = path_.empty() ? "output of the root" : text_of("output of module '", path_, "'");
  check_dims(what, rule.expected_dims, tensor);
  const int dim = wrapped_dim(what, rule.gather_dim, tensor);
  const auto key = rule.like.empty() ? share_->first_input : rule.like;
  auto found = share_->layouts.find(key);
  if (found == share_->layouts.end()) found = share_->layouts.find("." + key);  // an argument of the root
  check<ConfigError>(found != share_->layouts.end(), what, " is gathered like '", key,
                     "', which has not been split in this call. Name a split input in ContextParallelOutput::like.");
  const int64_t expected = found->second.local_length(share_->group.rank());
  check<ShapeError>(tensor.size(dim) == expected, what, " has ", tensor.size(dim), " tokens along dimension ", dim,
                    " on context rank ", share_->group.rank(), ", and '", key, "' has ", expected,
                    ". Name the input it follows in ContextParallelOutput::like.");
  return found->second;
}

at::Tensor PlannedEdge::gather(const ContextParallelOutput& rule, const at::Tensor& tensor) {
  const int dim = wrapped_dim("output", rule.gather_dim, tensor);
  return Gather::apply(tensor, GatherRule{share_->group, layout_to_gather(rule, tensor), dim});
}

}  // namespace pardiff::nn
