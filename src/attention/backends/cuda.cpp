// The engine's kernels for CUDA, called through its dispatcher: nothing here needs CUDA's headers.
#include <ATen/ATen.h>
#include <pardiff/core/check.h>

#include <array>
#include <limits>

#include "attention/backends/backends.h"

namespace pardiff {
namespace {

constexpr int64_t kHeadDimStep = 8;       // the kernels read rows in units of 16 bytes of half precision
constexpr int64_t kLargestHeadDim = 128;  // of cuDNN; the others take more
constexpr int64_t kLseStep = 32;          // the efficient kernel pads the rows of its log-sum-exp
constexpr int64_t kMaskStep = 16;         // and wants rows of a mask to begin at aligned addresses

// [B, S, H, D] <-> [B, H, S, D], no copy
at::Tensor heads_first(const at::Tensor& x) { return x.transpose(1, 2); }

std::optional<at::Tensor> optional_of(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

// [B|1, H|1, Sq|1, Skv] -> [B, H, Sq, Skv], aligned
at::Tensor aligned_mask(const KernelInputs& inputs) {
  if (!inputs.mask.defined()) return {};
  const int64_t keys = inputs.mask.size(3), padding = (kMaskStep - keys % kMaskStep) % kMaskStep;
  const auto padded = at::constant_pad_nd(inputs.mask.to(inputs.query.scalar_type()), {0, padding}).contiguous();
  return padded.narrow(3, 0, keys)
      .expand({inputs.query.size(0), inputs.query.size(2), inputs.query.size(1), inputs.key.size(1)});
}

// State of a random generator that no kernel here reads: there is no dropout.
at::Tensor unused_state(const at::Tensor& like) { return at::zeros({2}, like.options().dtype(at::kLong)); }

class CudaAttention : public AttentionBackend {
 public:
  CudaAttention(std::string name, std::string description)
      : name_(std::move(name)), description_(std::move(description)) {}

  std::string name() const override { return name_; }
  std::string description() const override { return description_; }

  std::string why_not(const KernelNeeds& needs) const override {
    if (needs.device != at::kCUDA) return "it runs on CUDA only";
    if (needs.head_dim % kHeadDimStep != 0) return text_of("its head_dim is a multiple of ", kHeadDimStep);
    return why_not_on_cuda(needs);
  }

 protected:
  virtual std::string why_not_on_cuda(const KernelNeeds& needs) const = 0;

  static bool is_half(const KernelNeeds& needs) {
    return !needs.dtype || *needs.dtype == at::kHalf || *needs.dtype == at::kBFloat16;
  }

 private:
  std::string name_, description_;
};

class FlashAttention : public CudaAttention {
 public:
  FlashAttention() : CudaAttention("_native_flash", "the engine's flash attention (CUDA, half precision, no mask)") {}

  KernelOutput forward(const KernelInputs& inputs) const override {
    const auto results = at::_scaled_dot_product_flash_attention(
        heads_first(inputs.query), heads_first(inputs.key), heads_first(inputs.value), /*dropout_p=*/0.0,
        inputs.is_causal, /*return_debug_mask=*/false, inputs.scale);
    return {heads_first(std::get<0>(results)), heads_first(std::get<1>(results))};
  }

  KernelGradients backward(const at::Tensor& grad_out, const KernelInputs& inputs,
                           const KernelOutput& final) const override {
    const auto state = unused_state(inputs.query);
    const auto [query, key, value] = at::_scaled_dot_product_flash_attention_backward(
        heads_first(grad_out), heads_first(inputs.query), heads_first(inputs.key), heads_first(inputs.value),
        heads_first(final.out), heads_first(final.lse).contiguous(), /*cum_seq_q=*/at::Tensor(),
        /*cum_seq_k=*/at::Tensor(), inputs.query.size(1), inputs.key.size(1), /*dropout_p=*/0.0, inputs.is_causal,
        state, state, inputs.scale);
    return {heads_first(query), heads_first(key), heads_first(value)};
  }

 protected:
  std::string why_not_on_cuda(const KernelNeeds& needs) const override {
    if (needs.mask) return "it takes no mask";
    return is_half(needs) ? "" : "it computes in float16 and bfloat16 only";
  }
};

class EfficientAttention : public CudaAttention {
 public:
  EfficientAttention() : CudaAttention("_native_efficient", "the engine's memory-efficient attention (CUDA)") {}

  KernelOutput forward(const KernelInputs& inputs) const override {
    const auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
        heads_first(inputs.query), heads_first(inputs.key), heads_first(inputs.value),
        optional_of(aligned_mask(inputs)), /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, inputs.is_causal,
        inputs.scale);
    KernelOutput output{heads_first(out), heads_first(lse.narrow(2, 0, inputs.query.size(1)))};
    if (inputs.mask.defined()) clear_dead_rows(output, inputs.mask);
    return output;
  }

  KernelGradients backward(const at::Tensor& grad_out, const KernelInputs& inputs,
                           const KernelOutput& final) const override {
    const int64_t rows = inputs.query.size(1), padding = (kLseStep - rows % kLseStep) % kLseStep;
    const auto lse =
        at::constant_pad_nd(heads_first(final.lse), {0, padding}, std::numeric_limits<double>::infinity()).contiguous();
    const auto state = unused_state(inputs.query);
    const auto [query, key, value, bias] = at::_scaled_dot_product_efficient_attention_backward(
        heads_first(grad_out), heads_first(inputs.query), heads_first(inputs.key), heads_first(inputs.value),
        aligned_mask(inputs), heads_first(final.out), lse, state, state, /*dropout_p=*/0.0,
        std::array<bool, 4>{true, true, true, false}, inputs.is_causal, inputs.scale);
    return {heads_first(query), heads_first(key), heads_first(value)};
  }

 protected:
  std::string why_not_on_cuda(const KernelNeeds& needs) const override {
    return needs.dtype == at::kDouble ? "it does not compute in float64" : "";
  }
};

class CudnnAttention : public CudaAttention {
 public:
  CudnnAttention() : CudaAttention("_native_cudnn", "cuDNN's attention (CUDA, half precision)") {}

  KernelOutput forward(const KernelInputs& inputs) const override {
    const auto results = at::_scaled_dot_product_cudnn_attention(
        heads_first(inputs.query), heads_first(inputs.key), heads_first(inputs.value),
        optional_of(aligned_mask(inputs)), /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, inputs.is_causal,
        /*return_debug_mask=*/false, inputs.scale);
    const auto sizes = inputs.query.sizes();
    KernelOutput output{heads_first(std::get<0>(results)),
                        heads_first(std::get<1>(results).reshape({sizes[0], sizes[2], sizes[1]}))};
    if (inputs.mask.defined()) clear_dead_rows(output, inputs.mask);
    return output;
  }

  KernelGradients backward(const at::Tensor& grad_out, const KernelInputs& inputs,
                           const KernelOutput& final) const override {
    const auto state = unused_state(inputs.query);
    const auto [query, key, value] = at::_scaled_dot_product_cudnn_attention_backward(
        heads_first(grad_out), heads_first(inputs.query), heads_first(inputs.key), heads_first(inputs.value),
        heads_first(final.out), heads_first(final.lse).contiguous().unsqueeze(-1), state, state, aligned_mask(inputs),
        /*cum_seq_q=*/at::Tensor(), /*cum_seq_k=*/at::Tensor(), inputs.query.size(1), inputs.key.size(1),
        /*dropout_p=*/0.0, inputs.is_causal, inputs.scale);
    return {heads_first(query), heads_first(key), heads_first(value)};
  }

 protected:
  std::string why_not_on_cuda(const KernelNeeds& needs) const override {
    if (needs.head_dim > kLargestHeadDim) return text_of("its head_dim is at most ", kLargestHeadDim);
    return is_half(needs) ? "" : "it computes in float16 and bfloat16 only";
  }
};

}  // namespace

const AttentionBackend& native_flash_attention() {
  static const FlashAttention backend;
  return backend;
}

const AttentionBackend& native_efficient_attention() {
  static const EfficientAttention backend;
  return backend;
}

const AttentionBackend& native_cudnn_attention() {
  static const CudnnAttention backend;
  return backend;
}

const AttentionBackend& cuda_attention_for(const KernelNeeds& needs) {
  for (const auto* backend : {&native_flash_attention(), &native_efficient_attention()}) {
    if (backend->why_not(needs).empty()) return *backend;
  }
  return math_attention();
}

}  // namespace pardiff
