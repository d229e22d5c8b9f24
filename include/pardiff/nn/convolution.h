#pragma once
#include <pardiff/nn/boundary.h>
#include <pardiff/nn/parameter.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

namespace pardiff::nn {

struct Conv2dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  bool bias = true;
  ParameterOptions parameters{};
};

/// A square two-dimensional convolution with parameters `weight` [out_channels, in_channels, kernel, kernel] and `bias`
/// [out_channels].
/// Shapes: x [B, in_channels, height, width]; returns [B, out_channels, ...].
class Conv2dImpl : public torch::nn::Module, public EdgeOwner {
 public:
  Conv2dImpl(int64_t in_channels, int64_t out_channels, int64_t kernel, const Conv2dOptions& options = {});

  at::Tensor forward(const at::Tensor& x);

  PlannedEdge& edge() override { return edge_; }
  std::vector<std::string> argument_names() const override { return {"input"}; }

  at::Tensor weight, bias;

 private:
  int64_t stride_, padding_;
  PlannedEdge edge_;
};
TORCH_MODULE(Conv2d);

}  // namespace pardiff::nn
