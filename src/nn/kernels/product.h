#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pardiff::nn::kernels {

/// at::linear by the fastest library at hand. Where `may_multiply` allows the weight and there are rows enough, that is
/// oneDNN: it uses the widest vectors of every processor, while MKL, behind at::linear, keeps to AVX2 on those that are
/// not Intel's. Shapes: x [..., in], weight [out, in], bias [out] or undefined; returns [..., out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
/// Outputs [begin, end) of it, by the library that would compute all of them.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t begin, int64_t end);

}  // namespace pardiff::nn::kernels
