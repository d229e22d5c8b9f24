#include <ATen/ATen.h>
#include <pardiff/nn/modulation.h>

namespace pardiff::nn {

ModulationImpl::ModulationImpl(int64_t dim, int64_t chunks, const ParameterOptions& parameters)
    : torch::nn::Module("Modulation"),
      linear(register_module("linear", Linear(dim, chunks * dim, LinearOptions{.parameters = parameters}))),
      chunks_(chunks) {}

std::vector<at::Tensor> ModulationImpl::forward(const at::Tensor& condition) {
  return linear->forward(condition).unsqueeze(1).chunk(chunks_, -1);
}

at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps) {
  const int64_t dim = x.size(-1);
  // For one row of the batch, scale and shift are just what the kernel takes as its weights.
  if (scale.numel() == dim) return at::layer_norm(x, {dim}, scale.flatten() + 1, shift.flatten(), eps);
  auto normed = at::layer_norm(x, {dim}, {}, {}, eps);
  if (at::GradMode::is_enabled()) return at::addcmul(shift, normed, scale + 1);
  return at::addcmul_out(normed, shift, normed, scale + 1);
}

at::Tensor gated_residual(const at::Tensor& x, const at::Tensor& gate, at::Tensor y) {
  if (at::GradMode::is_enabled()) return at::addcmul(x, gate, y);
  return at::addcmul_out(y, x, gate, y);
}

}  // namespace pardiff::nn
