#pragma once
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

namespace pardiff::nn::kernels {

/// Float32 on the CPU, in one piece.
inline bool is_plain_float(const at::Tensor& x) {
  return x.defined() && x.is_cpu() && x.scalar_type() == at::kFloat && x.layout() == at::kStrided && x.is_contiguous();
}

/// From here on a tensor is worth it. Smaller ones, among them all of flux-shapes, stay with the engine's operators, on
/// whose rounding the golden pictures' tolerances rest (docs/benchmarks.md, Precision).
inline constexpr int64_t kWorthFusing = int64_t{1} << 17;

/// Whether what is in this folder may take the place of the engine's operators: the one place where this is decided.
/// Gradients are not recorded, no autocast changes dtypes, all of the tensors are float32 on the CPU, each in one
/// piece, and the first is worth it.
template <typename... Tensors>
bool may_fuse(const at::Tensor& first, const Tensors&... others) {
  return !c10::GradMode::is_enabled() && is_plain_float(first) && first.numel() >= kWorthFusing &&
         (is_plain_float(others) && ...) && !at::autocast::is_autocast_enabled(at::kCPU);
}

}  // namespace pardiff::nn::kernels
