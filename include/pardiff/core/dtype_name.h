#pragma once
#include <c10/core/ScalarType.h>

#include <string>

namespace pardiff {

/// As flags and configs of transformers have it: "bfloat16". What neither knows has the engine's name: "Long".
std::string dtype_name(at::ScalarType dtype);

}  // namespace pardiff
