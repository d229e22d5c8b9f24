#include <pardiff/core/check.h>

#include "attention/backends/backends.h"

namespace pardiff {
namespace {

// A row that answers for a kernel which this build does not have.
class CudaOnlyAttention : public AttentionBackend {
 public:
  CudaOnlyAttention(std::string name, std::string description)
      : name_(std::move(name)), description_(std::move(description)) {}

  std::string name() const override { return name_; }
  std::string description() const override { return description_; }

  std::string why_not(const KernelNeeds& needs) const override {
    return needs.device == at::kCUDA ? "this build has no kernels for CUDA" : "it runs on CUDA only";
  }

  KernelOutput forward(const KernelInputs&) const override { refuse(); }
  KernelGradients backward(const at::Tensor&, const KernelInputs&, const KernelOutput&) const override { refuse(); }

 private:
  [[noreturn]] void refuse() const {
    fail<ConfigError>("attention backend '", name_, "' cannot run: this build has no kernels for CUDA. Use native.");
  }

  std::string name_, description_;
};

}  // namespace

const AttentionBackend& native_flash_attention() {
  static const CudaOnlyAttention backend("_native_flash", "the engine's flash attention (CUDA)");
  return backend;
}

const AttentionBackend& native_efficient_attention() {
  static const CudaOnlyAttention backend("_native_efficient", "the engine's memory-efficient attention (CUDA)");
  return backend;
}

const AttentionBackend& native_cudnn_attention() {
  static const CudaOnlyAttention backend("_native_cudnn", "cuDNN's attention (CUDA)");
  return backend;
}

}  // namespace pardiff
