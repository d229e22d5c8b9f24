#include <ATen/ATen.h>
#include <pardiff/nn/convolution.h>

#include <cmath>

namespace pardiff::nn {

Conv2dImpl::Conv2dImpl(int64_t in_channels, int64_t out_channels, int64_t kernel, const Conv2dOptions& options)
    : torch::nn::Module("Conv2d"), stride_(options.stride), padding_(options.padding) {
  weight =
      register_parameter("weight", make_parameter({out_channels, in_channels, kernel, kernel}, options.parameters));
  if (options.bias) bias = register_parameter("bias", make_parameter({out_channels}, options.parameters));
  if (!options.parameters.allocate) return;
  at::NoGradGuard no_grad;
  const double bound =
      1.0 / std::sqrt(static_cast<double>(in_channels * kernel * kernel));  // torch.nn.Conv2d's default
  weight.uniform_(-bound, bound);
  if (bias.defined()) bias.uniform_(-bound, bound);
}

at::Tensor Conv2dImpl::forward(const at::Tensor& input) {
  const auto x = edge_.enter("input", input);
  return edge_.leave(
      at::conv2d(x, weight, bias, at::IntArrayRef{stride_, stride_}, at::IntArrayRef{padding_, padding_}));
}

}  // namespace pardiff::nn
