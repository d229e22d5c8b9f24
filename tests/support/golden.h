#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace pardiff::testing {

/// tests/data/<name>
std::string data_path(const std::string& name);
/// models/<name>
std::string model_path(const std::string& name);

/// max|a - b| / max|b|; exactly 0 when both are empty. NaN anywhere gives infinity, so that every comparison fails.
double relative_error(const at::Tensor& actual, const at::Tensor& expected);
/// max|a - b|; NaN anywhere gives infinity.
double absolute_error(const at::Tensor& actual, const at::Tensor& expected);
/// ||a - b|| / ||b||; NaN anywhere gives infinity.
double norm_relative_error(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace pardiff::testing
