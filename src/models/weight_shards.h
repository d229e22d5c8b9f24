#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/nn/recompute.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace pardiff {

/// The parameters of a model's units (its blocks), of which every rank of a group keeps 1/N. A unit is gathered while
/// it is in use; the one that follows arrives meanwhile.
///
/// Parameters keep their tensors and shapes. Between uses these have no memory, and must not be read.
class WeightShards {
 public:
  /// A set of parameters, by identity.
  using ParameterSet = std::set<const at::TensorImpl*>;

  /// `units` in the order of use; `on_local_heads` see Model::modules_on_local_heads. Nothing is sharded yet.
  WeightShards(std::vector<std::shared_ptr<torch::nn::Module>> units, ProcessGroup group, ParameterSet on_local_heads);

  /// Keeps this rank's part of the unit that `parameter` belongs to, once all of its parameters have been announced.
  void parameter_is_loaded(const at::Tensor& parameter);
  /// Keeps this rank's part of every unit; the values are those of the group's rank 0. Collective: the group.
  void shard_all();
  /// Gives every parameter its memory and its gradient back, for good. Collective: the group.
  void restore();

  /// In which order units are used.
  enum class Pass { kForward, kBackward };
  /// Gathers a unit and starts on the next one of the pass. Collective: the group.
  void acquire(const torch::nn::Module& unit, Pass pass);
  /// Frees what `acquire` has gathered.
  void release(const torch::nn::Module& unit) noexcept;

  /// Flat, [elements of a part]: each stands for the parameters of one unit, dtype and treatment.
  std::vector<at::Tensor> parts() const;
  std::vector<at::Tensor> parts(const torch::nn::Module& unit) const;
  bool is_on_local_heads(const at::Tensor& part) const;
  /// The parameters of a unit, in the order of `parts_of_sum`.
  std::vector<at::Tensor> parameters(const torch::nn::Module& unit) const;
  /// The sums of all ranks' gradients of `parameters`, of which this rank keeps its part: one for each of `parts`.
  /// Undefined gradients are zeros. Half precision is summed in float32. Collective: the group.
  std::vector<at::Tensor> parts_of_sum(const torch::nn::Module& unit, const std::vector<at::Tensor>& gradients) const;

  /// Of this rank's parts.
  int64_t bytes() const { return part_bytes_; }
  /// The most so far of parts and gathered units together.
  int64_t peak_bytes() const { return part_bytes_ + peak_gathered_bytes_; }

 private:
  // The parameters of a unit that have one dtype and one treatment, end to end.
  struct Run {
    std::vector<at::Tensor> parameters;
    bool on_local_heads = false;
    at::Tensor whole{};  // [ranks * elements of a part]; its memory comes and goes
    at::Tensor part{};
  };
  struct Unit {
    std::shared_ptr<torch::nn::Module> module;
    std::vector<at::Tensor> parameters;
    std::vector<Run> runs{};
    size_t loaded = 0;
    bool gathered = false;  // or on its way
    std::vector<Pending> arriving{};
  };

  void fill(Run& run) const;
  void shard(Unit& unit);
  void start(Unit& unit);
  void finish(Unit& unit);
  std::vector<int64_t> counts(const Run& run) const;
  at::Tensor part_of_sum(const Run& run, const at::Tensor* gradients) const;
  const Unit& unit_of(const torch::nn::Module& module) const;
  Unit& unit_of(const torch::nn::Module& module);

  ProcessGroup group_;
  ParameterSet on_local_heads_;
  std::vector<Unit> units_;
  int64_t part_bytes_ = 0, gathered_bytes_ = 0, peak_gathered_bytes_ = 0;
};

/// `segment` of `inputs` with the weights of `unit` whole. Where gradients are recorded only the inputs are kept, and
/// backward gathers the unit and runs the segment again. Collective: the shards' group.
std::vector<at::Tensor> run_with_whole_weights(const std::shared_ptr<WeightShards>& shards,
                                               const torch::nn::Module& unit, const nn::Segment& segment,
                                               const std::vector<at::Tensor>& inputs);

}  // namespace pardiff
