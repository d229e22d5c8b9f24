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
  /// The dtype of a parameter that would otherwise get `dtype` (or the file's).
  std::function<at::ScalarType(const std::string& name, at::ScalarType dtype)> dtype_of{};
  /// Whether to warn of tensors that the module does not have.
  bool warns_of_unused = true;
  /// Told of every parameter as soon as it is filled.
  std::function<void(const at::Tensor& parameter)> on_loaded{};
  /// The parameters to fill, by name; empty: all of them.
  std::function<bool(const std::string& name)> only{};

  /// The dtype that a parameter gets whose file has `stored`.
  at::ScalarType loaded_dtype(const std::string& name, at::ScalarType stored) const;
  /// What is taken of a parameter; nothing: all of it.
  std::optional<TensorSlice> slice_of(const std::string& name) const;
};

/// Compares names and shapes of `source` with the parameters of `module`; no data is read.
/// Throws: CheckpointError that names the file and the tensor which is missing, misshapen, or has no place in a part
/// that the module has (a block too many).
void check_parameters(const torch::nn::Module& module, const ParameterSource& source, const LoadOptions& options = {});

/// Fills every parameter of `module`, or those that `options` names, from `source`, once check_parameters has found
/// nothing wrong. A tensor of a part that the module does not have (a vision model beside a text model) gives a
/// warning. Throws: CheckpointError, as check_parameters.
void load_parameters(torch::nn::Module& module, const ParameterSource& source, const LoadOptions& options = {});

}  // namespace pardiff
