#include "models/weights_on_demand.h"

#include <ATen/ATen.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/model.h>
#include <pardiff/nn/parameter.h>

#include <algorithm>
#include <utility>

#include "models/shared_weights.h"

namespace pardiff {
namespace {

std::map<std::string, TensorSlice> slices_now(Model& model) {
  const auto* mesh = model.mesh();
  if (!mesh || mesh->size("tp") == 1) return {};
  return tensor_parallel_slices(model, model.tensor_parallel_plan(), mesh->size("tp"), mesh->index("tp"));
}

}  // namespace

WeightsOnDemand::WeightsOnDemand(Model& model, Checkpoint checkpoint, LoadOptions options)
    : model_(model), checkpoint_(std::move(checkpoint)), options_(std::move(options)) {
  for (const auto& parameter : model.named_parameters()) missing_.insert(parameter.key());
}

void WeightsOnDemand::read_all() {
  if (missing_.empty()) return;
  read([](const std::string&) { return true; });
}

void WeightsOnDemand::read(const Names& wanted) {
  if (std::none_of(missing_.begin(), missing_.end(), wanted)) return;
  const at::NoGradGuard no_grad;
  auto options = options_;
  options.slices = slices_now(model_);
  const auto shared = SharedWeights::of(model_, checkpoint_, options);
  std::set<std::string> own, common;
  for (const auto& parameter : model_.named_parameters()) {
    const auto& name = parameter.key();
    if (!missing_.contains(name) || !wanted(name)) continue;
    const bool is_shared = shared && shared->contains(name);
    (is_shared ? common : own).insert(name);
    read_[name] = {nullptr, 0, parameter.value().sizes().vec(), is_shared};
  }
  if (!own.empty()) read_named(own, options);
  if (!common.empty()) shared->read(common, [&](const auto& names) { read_named(names, options); });
  for (const auto& parameter : model_.named_parameters()) {
    const auto& name = parameter.key();
    const auto& value = parameter.value();
    if (!own.contains(name) && !common.contains(name)) continue;
    read_[name].data = value.const_data_ptr();
    read_[name].version = value._version();
    if (!checkpoint_.contains(name)) continue;  // under another spelling; its pages stay
    const bool is_copy = options.slices.contains(name) || checkpoint_.info(name).dtype != value.scalar_type();
    if (is_copy) checkpoint_.forget(name);
  }
  std::erase_if(missing_, wanted);
  peak_bytes_ = std::max(peak_bytes_, present_bytes(model_));
}

void WeightsOnDemand::read_named(const std::set<std::string>& names, const LoadOptions& options) {
  auto named = options;
  named.only = [&](const std::string& name) { return names.contains(name); };
  named.warns_of_unused = options_.warns_of_unused;
  load_parameters(model_, parameter_source(checkpoint_), named);
  options_.warns_of_unused = false;  // once is enough
}

bool WeightsOnDemand::is_shared(const std::string& name, const at::Tensor& parameter) const {
  const auto found = read_.find(name);
  return found != read_.end() && found->second.is_shared && found->second.data == parameter.const_data_ptr();
}

void WeightsOnDemand::give_back(const Names& names) {
  if (at::GradMode::is_enabled() || model_.weight_shards()) return;
  for (auto& parameter : model_.named_parameters()) {
    const auto& name = parameter.key();
    auto& value = parameter.value();
    const auto found = read_.find(name);
    if (!names(name) || found == read_.end() || missing_.contains(name)) continue;
    const auto& reading = found->second;
    if (value.const_data_ptr() != reading.data || value._version() != reading.version) continue;
    value.set_data(nn::make_parameter(reading.shape, {.dtype = value.scalar_type(), .allocate = false}));
    missing_.insert(name);
    if (checkpoint_.contains(name)) checkpoint_.forget(name);
  }
}

bool is_placeholder(const at::Tensor& parameter) {
  return static_cast<int64_t>(parameter.storage().nbytes()) < static_cast<int64_t>(parameter.nbytes());
}

int64_t present_bytes(const Model& model) {
  int64_t bytes = 0;
  for (const auto& parameter : model.parameters()) {
    if (!is_placeholder(parameter)) bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

}  // namespace pardiff
