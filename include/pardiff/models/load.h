#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/io/checkpoint.h>
#include <torch/nn/module.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pardiff {

/// Where a model's parameters come from: names and shapes without touching the data, and the data of one of them.
struct ParameterSource {
  std::string origin;  // for messages: a folder or file
  std::vector<std::string> names;
  std::function<std::vector<int64_t>(const std::string& name)> shape;
  /// The tensor, or only `slice` of it.
  std::function<at::Tensor(const std::string& name, const std::optional<TensorSlice>& slice)> tensor;
};

ParameterSource parameter_source(const Checkpoint& checkpoint);

struct LoadOptions {
  /// Unset: each parameter keeps the dtype of the file.
  std::optional<at::ScalarType> dtype{};
  at::Device device = at::kCPU;
  /// Another spelling of a parameter's name that the source may use; applied when the first is absent.
  std::function<std::vector<std::string>(const std::string& name)> other_names{};
  /// Parameters of which only a slice is taken (tensor parallelism).
  std::map<std::string, TensorSlice> slices{};
  /// Names in the source that are known and not needed.
  std::vector<std::string> ignored{};
  /// A parameter whose dtype differs from `dtype`.
  std::function<std::optional<at::ScalarType>(const std::string& name)> dtype_of{};
};

/// Fills every parameter of `module` from `source`. Everything is checked first: names, then shapes.
/// A tensor of the source that the module does not have gives a warning.
/// Throws: CheckpointError that names the file and the tensor which is missing or misshapen.
void load_parameters(torch::nn::Module& module, const ParameterSource& source, const LoadOptions& options = {});

}  // namespace pardiff
