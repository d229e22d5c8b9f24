#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

namespace pardiff::nn {

/// How a layer makes its parameters.
struct ParameterOptions {
  at::ScalarType dtype = at::kFloat;
  /// False: the parameter has its shape but no memory of its own (a model about to be loaded fills it by set_data).
  bool allocate = true;
};

/// An uninitialised parameter of `shape`, or a placeholder that takes no memory (all strides 0).
at::Tensor make_parameter(const std::vector<int64_t>& shape, const ParameterOptions& options);

}  // namespace pardiff::nn
