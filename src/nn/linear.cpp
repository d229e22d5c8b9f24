#include <ATen/ops/cat.h>
#include <pardiff/core/check.h>
#include <pardiff/nn/linear.h>

#include <cmath>

#include "nn/kernels/product.h"

namespace pardiff::nn {
namespace {

// The default of torch.nn.Linear: uniform within 1/sqrt(in_features).
void initialise(const at::Tensor& parameter, int64_t in_features) {
  const double bound = in_features > 0 ? 1.0 / std::sqrt(static_cast<double>(in_features)) : 0.0;
  at::NoGradGuard no_grad;
  parameter.uniform_(-bound, bound);
}

at::Tensor with_bias(const at::Tensor& y, const at::Tensor& bias) { return bias.defined() ? y + bias : y; }

}  // namespace

LinearImpl::LinearImpl(int64_t in_features, int64_t out_features, const LinearOptions& options)
    : in_features_(in_features), out_features_(out_features) {
  weight = register_parameter("weight", make_parameter({out_features, in_features}, options.parameters));
  if (options.bias) bias = register_parameter("bias", make_parameter({out_features}, options.parameters));
  if (!options.parameters.allocate) return;
  initialise(weight, in_features);
  if (bias.defined()) initialise(bias, in_features);
}

at::Tensor LinearImpl::product(const at::Tensor& x) const { return kernels::linear(x, weight, {}); }

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  const auto entered = edge_.enter("input", x);
  switch (sharding.style) {
    case ShardStyle::kColumn:
      return edge_.leave(kernels::linear(copy_to_group(entered, sharding.group), weight, bias));
    case ShardStyle::kRow:
      return edge_.leave(with_bias(reduce_from_group(product(entered), sharding.group), bias));
    case ShardStyle::kWhole:
      break;
  }
  return edge_.leave(kernels::linear(entered, weight, bias));
}

at::Tensor LinearImpl::outputs(const at::Tensor& x, int64_t begin, int64_t end) {
  check<ConfigError>(has_separate_outputs(),
                     "a part of a layer's outputs exists only where nothing follows its product.");
  return kernels::linear(x, weight, bias, begin, end);
}

std::pair<at::Tensor, at::Tensor> forward_together(Linear& first, const at::Tensor& first_x, Linear& second,
                                                   const at::Tensor& second_x) {
  const bool both_row = first->sharding.style == ShardStyle::kRow && second->sharding.style == ShardStyle::kRow;
  if (!both_row) return {first->forward(first_x), second->forward(second_x)};
  const auto first_y = first->product(first_x), second_y = second->product(second_x);
  const auto sum = reduce_from_group(at::cat({first_y.flatten(), second_y.flatten()}), first->sharding.group);
  return {with_bias(sum.narrow(0, 0, first_y.numel()).view(first_y.sizes()), first->bias),
          with_bias(sum.narrow(0, first_y.numel(), second_y.numel()).view(second_y.sizes()), second->bias)};
}

}  // namespace pardiff::nn
