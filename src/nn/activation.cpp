#include <ATen/ATen.h>
#include <pardiff/nn/activation.h>

#include <cmath>
#include <numbers>

#include "nn/kernels/choice.h"
#include "nn/kernels/elementwise.h"

namespace pardiff::nn {

at::Tensor silu(at::Tensor x) {
  if (!kernels::may_fuse(x)) return at::GradMode::is_enabled() ? at::silu(x) : at::silu_(x);
  kernels::silu(x.mutable_data_ptr<float>(), x.numel());
  return x;
}

at::Tensor gelu_tanh(at::Tensor x) {
  if (!kernels::may_fuse(x)) return at::GradMode::is_enabled() ? at::gelu(x, "tanh") : at::gelu_(x, "tanh");
  const int64_t width = x.size(-1), rows = x.numel() / width;
  auto* values = x.mutable_data_ptr<float>();
  kernels::gelu_tanh(values, values, width, rows, width);
  return x;
}

at::Tensor quick_gelu(at::Tensor x) {
  if (at::GradMode::is_enabled()) return x * at::sigmoid(1.702 * x);
  return x.mul_(at::mul(x, 1.702).sigmoid_());
}

at::Tensor gelu_new(at::Tensor x) {
  const bool is_half = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  if (!is_half) return gelu_tanh(std::move(x));
  const double factor = std::sqrt(2.0 / std::numbers::pi);
  return 0.5 * x * (1.0 + at::tanh(factor * (x + 0.044715 * at::pow(x, 3.0))));
}

at::Tensor beside_gelu_tanh(const at::Tensor& attention, const at::Tensor& mlp) {
  if (at::GradMode::is_enabled()) return at::cat({attention, at::gelu(mlp, "tanh")}, -1);
  auto both = gelu_tanh_beside_room(attention.size(-1), {mlp});
  both.narrow(-1, 0, attention.size(-1)).copy_(attention);
  return both;
}

at::Tensor gelu_tanh_beside_room(int64_t room, const std::vector<at::Tensor>& mlp) {
  auto shape = mlp.front().sizes().vec();
  shape.back() = room;
  for (const auto& part : mlp) shape.back() += part.size(-1);
  auto all = at::empty(shape, mlp.front().options());
  int64_t column = room;
  for (const auto& part : mlp) {
    const int64_t width = part.size(-1);
    auto place = all.narrow(-1, column, width);
    if (kernels::may_fuse(part, all)) {
      kernels::gelu_tanh(part.const_data_ptr<float>(), place.mutable_data_ptr<float>(), all.size(-1),
                         part.numel() / width, width);
    } else {
      at::gelu_out(place, part, "tanh");
    }
    column += width;
  }
  return all;
}

}  // namespace pardiff::nn
