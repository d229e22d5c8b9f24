#include <ATen/ATen.h>
#include <pardiff/nn/activation.h>
#include <pardiff/nn/feed_forward.h>

namespace pardiff::nn {

FeedForwardImpl::FeedForwardImpl(int64_t dim, int64_t hidden_dim, const ParameterOptions& parameters)
    : torch::nn::Module("FeedForward"),
      projection(dim, hidden_dim, LinearOptions{.parameters = parameters}),
      output(hidden_dim, dim, LinearOptions{.parameters = parameters}) {
  // net.1 is a dropout in the reference: no parameters, and nothing to do here.
  const auto net = register_module("net", std::make_shared<torch::nn::Module>("net"));
  net->register_module("0", std::make_shared<torch::nn::Module>("0"))->register_module("proj", projection);
  net->register_module("2", output);
}

at::Tensor FeedForwardImpl::hidden(const at::Tensor& x) { return gelu_tanh(projection->forward(x)); }

at::Tensor FeedForwardImpl::forward(const at::Tensor& x) { return output->forward(hidden(x)); }

}  // namespace pardiff::nn
