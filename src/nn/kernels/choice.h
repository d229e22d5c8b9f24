#pragma once
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

namespace pardiff::nn::kernels {

/// Float32 on the CPU, in one piece.
inline bool is_plain_float(const at::Tensor& x) {
  return x.defined() && x.is_cpu() && x.scalar_type() == at::kFloat && x.layout() == at::kStrided && x.is_contiguous();
}

/// Rows and weights from these sizes on are worth it; all of flux-shapes stays with the engine's operators, on whose
/// rounding the golden pictures' tolerances rest (docs/benchmarks.md, Precision). None of these sizes depends on how
/// many tokens or heads a rank holds, so that all layouts of a model round alike.
inline constexpr int64_t kWideRow = 768, kWideHead = 64, kLargeWeight = int64_t{1} << 17;

/// Gradients are not recorded, no autocast changes dtypes, all of the tensors are float32 on the CPU, each in one
/// piece.
template <typename... Tensors>
bool are_plain_without_gradients(const Tensors&... tensors) {
  return !c10::GradMode::is_enabled() && (is_plain_float(tensors) && ...) &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

/// Whether a product with this weight may go to what is in this folder, instead of the engine's operator.
inline bool may_multiply(const at::Tensor& weight, const at::Tensor& x) {
  return are_plain_without_gradients(weight, x) && weight.numel() >= kLargeWeight;
}

/// The same for a pass over rows: those of `first` count.
template <typename... Tensors>
bool may_fuse(const at::Tensor& first, const Tensors&... others) {
  return are_plain_without_gradients(first, others...) && first.dim() > 0 && first.size(-1) >= kWideRow;
}

/// The same for a pass over heads [..., heads, head_dim].
template <typename... Tensors>
bool may_fuse_heads(const at::Tensor& heads, const Tensors&... others) {
  return are_plain_without_gradients(heads, others...) && heads.dim() > 1 && heads.size(-1) >= kWideHead;
}

}  // namespace pardiff::nn::kernels
