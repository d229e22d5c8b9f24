#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace pardiff {

/// SHA-256 in hex.
std::string sha256(std::string_view bytes);
/// Of the elements' bytes in memory order, as if contiguous on the CPU.
std::string sha256(const at::Tensor& tensor);

}  // namespace pardiff
