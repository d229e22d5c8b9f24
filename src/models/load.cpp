#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/core/log.h>
#include <pardiff/models/load.h>
#include <pardiff/models/unused_tensors.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "io/mapped_reading.h"
#include "models/original_flux.h"

namespace pardiff {
namespace {

// The source's name for each parameter, found before anything is read.
std::map<std::string, std::string> resolve_names(const torch::nn::Module& module, const ParameterSource& source,
                                                 const LoadOptions& options) {
  const std::set<std::string> available(source.names.begin(), source.names.end());
  std::map<std::string, std::string> resolved;
  for (const auto& parameter : module.named_parameters()) {
    std::vector<std::string> candidates = {parameter.key()};
    if (options.other_names) {
      const auto others = options.other_names(parameter.key());
      candidates.insert(candidates.end(), others.begin(), others.end());
    }
    for (const auto& name : candidates) {
      if (!available.count(name)) continue;
      resolved.emplace(parameter.key(), name);
    }
    check<CheckpointError>(resolved.count(parameter.key()), source.origin, " has no tensor '", parameter.key(),
                           "', which ", module.name(),
                           " needs. The checkpoint is incomplete, or its config is another model's.");
  }
  return resolved;
}

void check_shapes(const torch::nn::Module& module, const ParameterSource& source, const LoadOptions& options,
                  const std::map<std::string, std::string>& names) {
  for (const auto& parameter : module.named_parameters()) {
    if (options.only && !options.only(parameter.key())) continue;  // it may be filled, and a slice
    const auto shape = source.shape(names.at(parameter.key()));
    check<CheckpointError>(at::IntArrayRef(shape) == parameter.value().sizes(), source.origin, ": tensor '",
                           names.at(parameter.key()), "' has shape ", at::IntArrayRef(shape), ", and ", module.name(),
                           " needs ", parameter.value().sizes(), ". The config does not belong to these weights.");
    const auto slice = options.slice_of(parameter.key());
    check<CheckpointError>(!slice || slice->dim < static_cast<int64_t>(shape.size()), "tensor '", parameter.key(),
                           "' cannot be sliced along dimension ", slice ? slice->dim : 0, ".");
  }
}

// Every spelling of a name that the module, or whoever ignores some, knows.
std::set<std::string> known_names(const torch::nn::Module& module, const LoadOptions& options) {
  std::set<std::string> known(options.ignored.begin(), options.ignored.end());
  for (const auto& parameter : module.named_parameters()) {
    known.insert(parameter.key());
    if (!options.other_names) continue;
    for (const auto& name : options.other_names(parameter.key())) known.insert(name);
  }
  return known;
}

std::string first_part(const std::string& name) { return name.substr(0, name.find('.')); }

// What a file holds of a part that the module has must be used: a config with too few layers, say, would quietly make
// another picture. Returns the names that are let be.
std::vector<std::string> check_unused(const torch::nn::Module& module, const ParameterSource& source,
                                      const LoadOptions& options) {
  auto unused = unused_tensors(module, source, options);
  check<CheckpointError>(unused.refused.empty(), source.origin, " has a tensor '",
                         unused.refused.empty() ? "" : unused.refused.front(), "' that ", module.name(),
                         " has no place for. The config does not belong to these weights.");
  return std::move(unused.let_be);
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// `wanted` rows of those that `rows` put end to end.
Ranges rows_among(const Ranges& rows, const Ranges& wanted) {
  Ranges found;
  for (const auto& [begin, end] : wanted) {
    int64_t at = 0;  // where the next of `rows` starts among them all
    for (const auto& [first, last] : rows) {
      const int64_t from = std::max(begin, at), to = std::min(end, at + last - first);
      if (from < to) found.emplace_back(first + from - at, first + to - at);
      at += last - first;
    }
  }
  return found;
}

at::Tensor tensor_of(const Checkpoint& checkpoint, const OriginalTensor& original,
                     const std::optional<TensorSlice>& slice) {
  const auto& [name, rows] = original;
  if (rows.empty()) return slice ? checkpoint.tensor(name, *slice) : checkpoint.tensor(name);
  if (slice && slice->dim == 0) {
    return checkpoint.tensor(name, {.dim = 0, .ranges = rows_among(rows, slice->ranges)});
  }
  const auto& [first, last] = rows.front();
  const auto whole = rows.size() == 1 ? checkpoint.tensor(name).narrow(0, first, last - first)  // nothing is copied
                                      : checkpoint.tensor(name, {.dim = 0, .ranges = rows});
  if (!slice) return whole;
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : slice->ranges) parts.push_back(whole.narrow(slice->dim, begin, end - begin));
  return at::cat(parts, slice->dim);
}

// Under the names of the parameters.
ParameterSource source_of_original(const Checkpoint& checkpoint) {
  const auto tensors =
      std::make_shared<const std::map<std::string, OriginalTensor>>(tensors_of_original_flux(checkpoint));
  std::vector<std::string> names;
  for (const auto& [name, original] : *tensors) names.push_back(name);
  const auto shape = [checkpoint, tensors](const std::string& name) {
    const auto& [stored, rows] = tensors->at(name);
    if (rows.empty()) return checkpoint.shape(stored);
    return checkpoint.shape(stored, TensorSlice{.dim = 0, .ranges = rows});
  };
  return {checkpoint.path().string(), names, shape,
          [checkpoint, tensors](const std::string& name, const std::optional<TensorSlice>& slice) {
            return tensor_of(checkpoint, tensors->at(name), slice);
          }};
}

}  // namespace

ParameterSource parameter_source(const Checkpoint& checkpoint) {
  if (is_original_flux(checkpoint)) return source_of_original(checkpoint);
  return {checkpoint.path().string(), checkpoint.names(),
          [checkpoint](const std::string& name) { return checkpoint.shape(name); },
          [checkpoint](const std::string& name, const std::optional<TensorSlice>& slice) {
            return slice ? checkpoint.tensor(name, *slice) : checkpoint.tensor(name);
          }};
}

at::ScalarType LoadOptions::loaded_dtype(const std::string& name, at::ScalarType stored) const {
  const auto wanted = dtype.value_or(stored);
  return dtype_of ? dtype_of(name, wanted) : wanted;
}

std::optional<TensorSlice> LoadOptions::slice_of(const std::string& name) const {
  const auto found = slices.find(name);
  return found == slices.end() ? std::nullopt : std::optional(found->second);
}

UnusedTensors unused_tensors(const torch::nn::Module& module, const ParameterSource& source,
                             const LoadOptions& options) {
  const auto known = known_names(module, options);
  std::set<std::string> parts;
  for (const auto& name : known) parts.insert(first_part(name));
  for (const auto& child : module.named_children()) parts.insert(child.key());
  UnusedTensors unused;
  for (const auto& name : source.names) {
    if (known.contains(name)) continue;
    (parts.contains(first_part(name)) ? unused.refused : unused.let_be).push_back(name);
  }
  return unused;
}

void check_parameters(const torch::nn::Module& module, const ParameterSource& source, const LoadOptions& options) {
  check_shapes(module, source, options, resolve_names(module, source, options));
  check_unused(module, source, options);
}

void load_parameters(torch::nn::Module& module, const ParameterSource& source, const LoadOptions& options) {
  const auto names = resolve_names(module, source, options);
  check_shapes(module, source, options, names);
  for (const auto& name : check_unused(module, source, options)) {
    if (options.warns_of_unused)
      warn(text_of(source.origin, " has a tensor '", name, "' that ", module.name(), " does not use."));
  }
  const at::NoGradGuard no_grad;
  const MappedReading reading;
  for (auto& parameter : module.named_parameters()) {
    if (options.only && !options.only(parameter.key())) continue;
    auto tensor = source.tensor(names.at(parameter.key()), options.slice_of(parameter.key()));
    const auto dtype = options.loaded_dtype(parameter.key(), tensor.scalar_type());
    parameter.value().set_data(tensor.to(options.device, dtype));
    tensor.reset();  // the only reference left is the parameter's
    if (options.on_loaded) options.on_loaded(parameter.value());
  }
  reading.finish();
}

}  // namespace pardiff
