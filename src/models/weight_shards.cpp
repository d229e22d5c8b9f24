#include "models/weight_shards.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "core/capsule.h"
#include "nn/rerun.h"

namespace pardiff {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Tensors over the storage stay what they are while its memory comes and goes.
void set_memory(const at::Tensor& tensor, int64_t bytes) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(static_cast<size_t>(bytes)));
  storage->set_nbytes(static_cast<size_t>(bytes));
}

int64_t bytes_of(const at::Tensor& flat) { return flat.numel() * static_cast<int64_t>(flat.element_size()); }

int64_t elements_of(const std::vector<at::Tensor>& parameters) {
  int64_t elements = 0;
  for (const auto& parameter : parameters) elements += parameter.numel();
  return elements;
}

// What of the parameters, laid end to end, falls on the stretch that `part` stands for.
void copy_stretch(const at::Tensor& part, int64_t start, const std::vector<at::Tensor>& parameters) {
  int64_t at = 0;
  for (const auto& parameter : parameters) {
    const int64_t from = std::max(start, at), to = std::min(start + part.numel(), at + parameter.numel());
    if (from < to) part.narrow(0, from - start, to - from).copy_(parameter.flatten().narrow(0, from - at, to - from));
    at += parameter.numel();
  }
}

at::ScalarType sum_dtype(at::ScalarType dtype) { return at::isReducedFloatingType(dtype) ? at::kFloat : dtype; }

// A unit's weights are whole while this lives.
class WholeWeights {
 public:
  WholeWeights(WeightShards& shards, const torch::nn::Module& unit, WeightShards::Pass pass)
      : shards_(shards), unit_(unit) {
    shards_.acquire(unit_, pass);
  }
  ~WholeWeights() { shards_.release(unit_); }
  WholeWeights(const WholeWeights&) = delete;
  WholeWeights& operator=(const WholeWeights&) = delete;

 private:
  WeightShards& shards_;
  const torch::nn::Module& unit_;
};

struct Use {
  std::shared_ptr<WeightShards> shards;
  const torch::nn::Module* unit;  // one of the shards', which live
  nn::Segment segment;
};

// The parts are inputs of the node in the place of the parameters, so that the outer backward pass takes their
// gradients.
struct UseOfUnit : torch::autograd::Function<UseOfUnit> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, at::TensorList /*parts*/,
                               const Use& use) {
    context->set_materialize_grads(false);
    context->saved_data["use"] = enclose(use);
    context->save_for_backward(inputs.vec());
    const WholeWeights whole(*use.shards, *use.unit, WeightShards::Pass::kForward);
    return nn::run_without_history(use.segment, inputs.vec());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    check<ConfigError>(!at::GradMode::is_enabled(),
                       "a model whose weights are sharded (shard_weights_over, fsdp_degree) has no second derivative. "
                       "Leave create_graph off, or call disable_parallelism.");
    const auto kept = context->get_saved_variables();
    const auto& use = enclosed_as<Use>(context->saved_data["use"]);
    const WholeWeights whole(*use.shards, *use.unit, WeightShards::Pass::kBackward);
    variable_list inputs, wanted;
    for (size_t i = 0; i < kept.size(); ++i) {
      inputs.push_back(kept[i].detach().set_requires_grad(context->needs_input_grad(i)));
      if (context->needs_input_grad(i)) wanted.push_back(inputs[i]);
    }
    const auto parameters = use.shards->parameters(*use.unit);
    for (const auto& parameter : parameters) {
      if (parameter.requires_grad()) wanted.push_back(parameter);
    }
    const auto found = nn::rerun_for_gradients(use.segment, inputs, wanted, gradients);
    auto next = found.begin();
    variable_list result;
    for (const auto& input : inputs) result.push_back(input.requires_grad() ? *next++ : at::Tensor());
    variable_list of_parameters;
    for (const auto& parameter : parameters) {
      of_parameters.push_back(parameter.requires_grad() ? *next++ : at::Tensor());
    }
    for (auto& part : use.shards->parts_of_sum(*use.unit, of_parameters)) result.push_back(std::move(part));
    result.emplace_back();  // for the use
    return result;
  }
};

}  // namespace

WeightShards::WeightShards(std::vector<std::shared_ptr<torch::nn::Module>> units, ProcessGroup group,
                           ParameterSet on_local_heads)
    : group_(std::move(group)), on_local_heads_(std::move(on_local_heads)) {
  for (auto& module : units) {
    auto parameters = module->parameters();
    units_.push_back({std::move(module), std::move(parameters)});
  }
}

void WeightShards::fill(Run& run) const {
  const auto& first = run.parameters.front();
  const int64_t ranks = group_.size(), each = (elements_of(run.parameters) + ranks - 1) / ranks;
  run.part = at::zeros({each}, first.options().requires_grad(false));
  copy_stretch(run.part, group_.rank() * each, run.parameters);
  run.whole = at::empty({ranks * each}, run.part.options());
  run.part.set_requires_grad(first.requires_grad());
  int64_t start = 0;
  for (auto& parameter : run.parameters) {
    const auto elements = parameter.numel();
    parameter.set_data(run.whole.narrow(0, start, elements).view(parameter.sizes()));
    start += elements;
  }
  set_memory(run.whole, 0);
}

void WeightShards::shard(Unit& unit) {
  const at::NoGradGuard no_grad;
  std::map<std::tuple<at::ScalarType, bool, bool>, std::vector<at::Tensor>> alike;
  for (const auto& parameter : unit.parameters) {
    const bool on_local_heads = on_local_heads_.contains(parameter.unsafeGetTensorImpl());
    alike[{parameter.scalar_type(), parameter.requires_grad(), on_local_heads}].push_back(parameter);
  }
  unit.parameters.clear();  // from here on in the order of the runs
  for (const auto& [key, parameters] : alike) {
    unit.runs.push_back({parameters, std::get<2>(key)});
    fill(unit.runs.back());
    unit.parameters.insert(unit.parameters.end(), parameters.begin(), parameters.end());
    part_bytes_ += bytes_of(unit.runs.back().part);
  }
}

void WeightShards::parameter_is_loaded(const at::Tensor& parameter) {
  for (auto& unit : units_) {
    const bool is_its_own = std::any_of(unit.parameters.begin(), unit.parameters.end(),
                                        [&](const at::Tensor& own) { return own.is_same(parameter); });
    if (is_its_own && ++unit.loaded == unit.parameters.size()) shard(unit);
  }
}

void WeightShards::shard_all() {
  const at::NoGradGuard no_grad;
  for (auto& unit : units_) {
    for (auto& parameter : unit.parameters) {
      const auto value = parameter.detach().contiguous().clone();
      broadcast(value, 0, group_).wait();
      parameter.set_data(value);
    }
    shard(unit);
  }
}

void WeightShards::restore() {
  const at::NoGradGuard no_grad;
  for (auto& unit : units_) {
    start(unit);
    finish(unit);
    for (auto& run : unit.runs) {
      if (!run.part.grad().defined()) continue;
      const auto whole = at::empty_like(run.whole);
      all_gather(whole, run.part.grad().contiguous(), counts(run), group_).wait();
      int64_t at = 0;
      for (auto& parameter : run.parameters) {
        parameter.mutable_grad() = whole.narrow(0, at, parameter.numel()).view(parameter.sizes()).clone();
        at += parameter.numel();
      }
    }
  }
}

const WeightShards::Unit& WeightShards::unit_of(const torch::nn::Module& module) const {
  const auto found =
      std::find_if(units_.begin(), units_.end(), [&](const Unit& unit) { return unit.module.get() == &module; });
  check<ConfigError>(found != units_.end(), module.name(), " is none of the model's weight_units.");
  return *found;
}

WeightShards::Unit& WeightShards::unit_of(const torch::nn::Module& module) {
  return const_cast<Unit&>(std::as_const(*this).unit_of(module));
}

std::vector<int64_t> WeightShards::counts(const Run& run) const {
  return std::vector<int64_t>(static_cast<size_t>(group_.size()), run.part.numel());
}

void WeightShards::start(Unit& unit) {
  if (unit.gathered) return;
  unit.gathered = true;
  for (const auto& run : unit.runs) {
    set_memory(run.whole, bytes_of(run.whole));
    gathered_bytes_ += bytes_of(run.whole);
    unit.arriving.push_back(all_gather(run.whole, run.part.detach(), counts(run), group_));
  }
  peak_gathered_bytes_ = std::max(peak_gathered_bytes_, gathered_bytes_);
}

void WeightShards::finish(Unit& unit) {
  for (auto& pending : unit.arriving) pending.wait();
  unit.arriving.clear();
}

void WeightShards::acquire(const torch::nn::Module& module, Pass pass) {
  const at::NoGradGuard no_grad;
  auto& unit = unit_of(module);
  start(unit);
  finish(unit);
  const auto index = &unit - units_.data();
  if (pass == Pass::kForward && index + 1 < std::ssize(units_)) start(units_[static_cast<size_t>(index) + 1]);
  if (pass == Pass::kBackward && index > 0) start(units_[static_cast<size_t>(index) - 1]);
}

void WeightShards::release(const torch::nn::Module& module) noexcept {
  auto& unit = unit_of(module);
  unit.arriving.clear();  // waits, if an error came in between
  for (const auto& run : unit.runs) {
    gathered_bytes_ -= bytes_of(run.whole);
    set_memory(run.whole, 0);
  }
  unit.gathered = false;
}

std::vector<at::Tensor> WeightShards::parts() const {
  std::vector<at::Tensor> all;
  for (const auto& unit : units_) {
    for (const auto& run : unit.runs) all.push_back(run.part);
  }
  return all;
}

std::vector<at::Tensor> WeightShards::parts(const torch::nn::Module& module) const {
  std::vector<at::Tensor> own;
  for (const auto& run : unit_of(module).runs) own.push_back(run.part);
  return own;
}

bool WeightShards::is_on_local_heads(const at::Tensor& part) const {
  for (const auto& unit : units_) {
    for (const auto& run : unit.runs) {
      if (run.part.is_same(part)) return run.on_local_heads;
    }
  }
  return false;
}

std::vector<at::Tensor> WeightShards::parameters(const torch::nn::Module& module) const {
  return unit_of(module).parameters;
}

at::Tensor WeightShards::part_of_sum(const Run& run, const at::Tensor* gradients) const {
  const auto dtype = sum_dtype(run.part.scalar_type());
  const auto whole = at::zeros({run.whole.numel()}, run.whole.options().dtype(dtype));
  int64_t at = 0;
  for (size_t i = 0; i < run.parameters.size(); ++i) {
    const auto elements = run.parameters[i].numel();
    if (gradients[i].defined()) whole.narrow(0, at, elements).copy_(gradients[i].reshape({-1}));
    at += elements;
  }
  const auto part = at::empty({run.part.numel()}, whole.options());
  reduce_scatter(part, whole, counts(run), group_).wait();
  return part.to(run.part.scalar_type());
}

std::vector<at::Tensor> WeightShards::parts_of_sum(const torch::nn::Module& module,
                                                   const std::vector<at::Tensor>& gradients) const {
  std::vector<at::Tensor> parts;
  const auto* next = gradients.data();
  for (const auto& run : unit_of(module).runs) {
    parts.push_back(run.part.requires_grad() ? part_of_sum(run, next) : at::Tensor());
    next += run.parameters.size();
  }
  return parts;
}

std::vector<at::Tensor> run_with_whole_weights(const std::shared_ptr<WeightShards>& shards,
                                               const torch::nn::Module& unit, const nn::Segment& segment,
                                               const std::vector<at::Tensor>& inputs) {
  if (at::GradMode::is_enabled()) {
    return UseOfUnit::apply(at::TensorList(inputs), at::TensorList(shards->parts(unit)), Use{shards, &unit, segment});
  }
  const WholeWeights whole(*shards, unit, WeightShards::Pass::kForward);
  return segment(inputs);
}

}  // namespace pardiff
