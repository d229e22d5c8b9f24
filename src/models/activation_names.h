#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace pardiff {

// Takes over its argument's memory when no gradient is recorded.
using Activation = at::Tensor (*)(at::Tensor);

// The names that transformers' configurations use, as far as they are supported.
std::vector<std::string> activation_names();
// Throws: ConfigError for another name.
Activation activation_named(const std::string& name);

}  // namespace pardiff
