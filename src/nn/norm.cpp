#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/nn/norm.h>

namespace pardiff::nn {
namespace {

// A norm that changes nothing but the scale, until its parameters are loaded.
void initialise(const at::Tensor& weight, const at::Tensor& bias, const ParameterOptions& options) {
  if (!options.allocate) return;
  at::NoGradGuard no_grad;
  weight.fill_(1);
  if (bias.defined()) bias.zero_();
}

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// 1 / sqrt(mean(x^2) + eps) over the last dimension, kept. The norm's reduction reads x once and stores no square.
at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  const auto norm = at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
  if (!at::GradMode::is_enabled()) return at::square(norm).div_(x.size(-1)).add_(eps).rsqrt_();
  // The norm's derivative does not exist at 0, where that of the mean of squares is 0.
  return at::rsqrt(at::mean(at::square(x), at::IntArrayRef{-1}, /*keepdim=*/true) + eps);
}

}  // namespace

RMSNormImpl::RMSNormImpl(int64_t dim, const RMSNormOptions& options)
    : torch::nn::Module("RMSNorm"),
      weight(register_parameter("weight", make_parameter({dim}, options.parameters))),
      eps_(options.eps),
      rounding_(options.rounding) {
  initialise(weight, {}, options.parameters);
}

at::Tensor RMSNormImpl::forward(const at::Tensor& input) {
  const auto x = edge_.enter("input", input);
  const auto wide = is_half(x.scalar_type()) ? x.to(at::kFloat) : x;
  auto y = wide * inverse_rms(wide, eps_);
  const bool in_place = !at::GradMode::is_enabled();
  if (rounding_ == RmsRounding::kOnce) {
    y = in_place ? y.mul_(weight) : y * weight;
    return edge_.leave(y.to(x.scalar_type()));
  }
  if (is_half(weight.scalar_type())) y = y.to(weight.scalar_type());
  return edge_.leave(in_place ? y.mul_(weight) : y * weight);
}

LayerNormImpl::LayerNormImpl(int64_t dim, const LayerNormOptions& options)
    : torch::nn::Module("LayerNorm"), dim_(dim), eps_(options.eps) {
  if (!options.affine) return;
  weight = register_parameter("weight", make_parameter({dim}, options.parameters));
  bias = register_parameter("bias", make_parameter({dim}, options.parameters));
  initialise(weight, bias, options.parameters);
}

at::Tensor LayerNormImpl::forward(const at::Tensor& input) {
  return edge_.leave(at::layer_norm(edge_.enter("input", input), {dim_}, weight, bias, eps_));
}

GroupNormImpl::GroupNormImpl(int64_t groups, int64_t channels, const GroupNormOptions& options)
    : torch::nn::Module("GroupNorm"), groups_(groups), eps_(options.eps) {
  check<ConfigError>(groups > 0 && channels % groups == 0, channels, " channels do not divide into ", groups,
                     " groups. Choose a number of groups that divides the channels.");
  weight = register_parameter("weight", make_parameter({channels}, options.parameters));
  bias = register_parameter("bias", make_parameter({channels}, options.parameters));
  initialise(weight, bias, options.parameters);
}

at::Tensor GroupNormImpl::forward(const at::Tensor& input) {
  return edge_.leave(at::group_norm(edge_.enter("input", input), groups_, weight, bias, eps_));
}

}  // namespace pardiff::nn
