#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/parallel/layout.h>
#include <pardiff/parallel/plan.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace pardiff::nn {

/// What the boundaries of one model share: made by `apply_context_parallel`, never global.
/// Layouts are those of the call under way; the next call overwrites them.
struct ContextShare {
  ProcessGroup group;                             // the flattened ring x ulysses mesh
  bool length_any = false;                        // an anything flag lifts the rule that lengths divide
  std::string lifting_flag;                       // the flag that would lift it, for the message
  std::map<std::string, SequenceLayout> layouts;  // "module.argument" -> shares in this call
  std::string first_input;  // key of the plan's first split tensor: what a gather follows unless told otherwise
  bool keep_split = false;  // while a KeepSplit lives: tensors pass, `layout` answers from `kept`
  std::map<std::string, SequenceLayout> kept;  // argument -> shares
};

/// The edge of one module: what is split as it enters, what is split or gathered as it leaves. Without rules it passes
/// everything through.
class PlannedEdge {
 public:
  /// Follows `plan` from now on. `path` is the module's name, `share` its model's state.
  void follow(std::string path, const ModulePlan& plan, std::shared_ptr<ContextShare> share);
  /// Knows the model's state but has nothing to split or gather itself.
  void attach(std::string path, std::shared_ptr<ContextShare> share);
  void release();
  const std::shared_ptr<ContextShare>& share() const { return share_; }
  /// Nothing is split or gathered here.
  bool passes_through() const { return inputs_.empty() && outputs_.empty(); }

  /// This rank's share of an argument, if the plan splits it.
  /// Throws: ShapeError for a wrong number of dimensions, or a length that does not divide in a plain mode.
  at::Tensor enter(const std::string& name, const at::Tensor& tensor);
  std::vector<at::Tensor> enter(const std::string& name, const std::vector<at::Tensor>& tensors);
  /// Collective when the plan gathers here.
  at::Tensor leave(const at::Tensor& tensor);
  std::vector<at::Tensor> leave(const std::vector<at::Tensor>& tensors);
  /// How an argument is shared in this call; whole if the plan does not split it.
  SequenceLayout layout(const std::string& name) const;

 private:
  at::Tensor split(const std::string& key, const ContextParallelInput& rule, const at::Tensor& tensor);
  const SequenceLayout& layout_to_gather(const ContextParallelOutput& rule, const at::Tensor& tensor) const;
  at::Tensor gather(const ContextParallelOutput& rule, const at::Tensor& tensor);

  std::string path_;
  std::shared_ptr<ContextShare> share_;
  ModulePlan::Inputs inputs_;
  std::vector<ContextParallelOutput> outputs_;
};

/// A module whose own edge a plan may name.
class EdgeOwner {
 public:
  virtual ~EdgeOwner() = default;
  virtual PlannedEdge& edge() = 0;
  /// Names that may stand in a plan; empty: not known before the first call.
  virtual std::vector<std::string> argument_names() const = 0;
};

}  // namespace pardiff::nn

namespace pardiff {

/// A submodule that names what enters and leaves its parent, so that a plan can split and gather there. Identity until
/// a plan is applied.
class BoundaryImpl : public torch::nn::Module, public nn::EdgeOwner {
 public:
  BoundaryImpl() = default;
  /// With the names that `enter` will be called with, a plan's typo is found when it is applied.
  explicit BoundaryImpl(std::vector<std::string> argument_names) : argument_names_(std::move(argument_names)) {}

  at::Tensor enter(const std::string& name, const at::Tensor& tensor) { return edge_.enter(name, tensor); }
  std::vector<at::Tensor> enter(const std::string& name, const std::vector<at::Tensor>& tensors) {
    return edge_.enter(name, tensors);
  }
  at::Tensor leave(const at::Tensor& tensor) { return edge_.leave(tensor); }
  std::vector<at::Tensor> leave(const std::vector<at::Tensor>& tensors) { return edge_.leave(tensors); }
  SequenceLayout layout(const std::string& name) const { return edge_.layout(name); }

  nn::PlannedEdge& edge() override { return edge_; }
  std::vector<std::string> argument_names() const override { return argument_names_; }

 private:
  nn::PlannedEdge edge_;
  std::vector<std::string> argument_names_;
};
TORCH_MODULE(Boundary);

}  // namespace pardiff
