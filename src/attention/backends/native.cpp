#include <ATen/ATen.h>
#include <pardiff/core/check.h>

#include <utility>

#include "attention/backends/backends.h"
#include "attention/backends/flash_cpu.h"

namespace pardiff {
namespace {

// [B, S, H, D] -> [B, H, S, D], which is what the kernels of the engine take; no copy.
at::Tensor heads_first(const at::Tensor& x) { return x.transpose(1, 2); }

// Flash attention on a CPU, our own where it can; on CUDA the fastest kernel that takes what is given.
class NativeAttention : public AttentionBackend {
 public:
  std::string name() const override { return "native"; }
  std::string description() const override { return "flash attention (CPU); the engine's fastest kernel (CUDA)"; }

  std::string why_not(const KernelNeeds& needs) const override {
    return needs.device == at::kCPU || needs.device == at::kCUDA ? "" : "it runs on the CPU and on CUDA";
  }

  KernelOutput forward(const KernelInputs& given) const override {
    if (given.query.is_cuda()) return on_cuda(given).forward(given);
    const auto inputs = given.is_part ? widened(given) : given;
    if (flash_cpu::takes(inputs)) return flash_cpu::forward(inputs);
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        heads_first(inputs.query), heads_first(inputs.key), heads_first(inputs.value), /*dropout_p=*/0.0,
        inputs.is_causal, mask_of(inputs), inputs.scale);
    KernelOutput output{heads_first(out), heads_first(lse)};
    if (inputs.mask.defined()) clear_dead_rows(output, inputs.mask);
    return output;
  }

  // The kernel of ours goes on where it ended with the keys before, as though these had come with them.
  KernelOutput forward_onto(KernelOutput seen, const KernelInputs& given) const override {
    if (given.query.is_cuda()) return AttentionBackend::forward_onto(std::move(seen), given);
    const auto inputs = given.is_part ? widened(given) : given;
    if (!flash_cpu::takes_onto(seen, inputs)) return AttentionBackend::forward_onto(std::move(seen), inputs);
    return flash_cpu::forward_onto(std::move(seen), inputs);
  }

  KernelGradients backward(const at::Tensor& grad_out, const KernelInputs& inputs,
                           const KernelOutput& final) const override {
    if (inputs.query.is_cuda()) return on_cuda(inputs).backward(grad_out, inputs, final);
    const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        heads_first(grad_out), heads_first(inputs.query), heads_first(inputs.key), heads_first(inputs.value),
        heads_first(final.out), heads_first(final.lse), /*dropout_p=*/0.0, inputs.is_causal, mask_of(inputs),
        inputs.scale);
    return {heads_first(query), heads_first(key), heads_first(value)};
  }

 private:
  static const AttentionBackend& on_cuda(const KernelInputs& inputs) {
    return cuda_attention_for({.device = at::kCUDA,
                               .lse = true,
                               .mask = inputs.mask.defined(),
                               .backward = true,
                               .dtype = inputs.query.scalar_type(),
                               .head_dim = inputs.query.size(3)});
  }

  // The kernel rounds its result to the dtype of its inputs, so a part that shall not be rounded needs wide inputs.
  static KernelInputs widened(KernelInputs inputs) {
    const auto dtype = at::promote_types(inputs.query.scalar_type(), at::kFloat);
    for (auto* tensor : {&inputs.query, &inputs.key, &inputs.value, &inputs.mask}) {
      if (tensor->defined()) *tensor = tensor->to(dtype);
    }
    return inputs;
  }

  static std::optional<at::Tensor> mask_of(const KernelInputs& inputs) {
    return inputs.mask.defined() ? std::optional<at::Tensor>(inputs.mask) : std::nullopt;
  }
};

}  // namespace

const AttentionBackend& native_attention() {
  static const NativeAttention backend;
  return backend;
}

}  // namespace pardiff
