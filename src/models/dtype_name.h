#pragma once
#include <c10/core/ScalarType.h>

#include <string>

namespace pardiff {

/// As configs of transformers have it: "bfloat16".
std::string dtype_name(at::ScalarType dtype);

}  // namespace pardiff
