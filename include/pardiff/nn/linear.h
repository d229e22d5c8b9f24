#pragma once
#include <pardiff/nn/boundary.h>
#include <pardiff/nn/parameter.h>
#include <pardiff/nn/tensor_parallel.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace pardiff::nn {

struct LinearOptions {
  bool bias = true;
  ParameterOptions parameters{};
};

/// y = x weight^T + bias, with parameters `weight` [out_features, in_features] and `bias` [out_features].
/// `apply_tensor_parallel` turns it into its column- or row-parallel form, in which the parameters hold this rank's
/// slice. Shapes: x [..., in_features]; returns [..., out_features].
class LinearImpl : public torch::nn::Module, public EdgeOwner {
 public:
  LinearImpl(int64_t in_features, int64_t out_features, const LinearOptions& options = {});

  at::Tensor forward(const at::Tensor& x);
  /// The product with this rank's slice, without what the tensor-parallel form adds after it (reduction, bias).
  at::Tensor product(const at::Tensor& x) const;

  /// Whether nothing follows the product, so that outputs can be had in parts: neither a sum over ranks nor a plan's
  /// split or gather.
  bool has_separate_outputs() const { return sharding.style != ShardStyle::kRow && edge_.passes_through(); }
  /// Outputs [begin, end) of this rank's. Throws: ConfigError unless has_separate_outputs.
  at::Tensor outputs(const at::Tensor& x, int64_t begin, int64_t end);

  PlannedEdge& edge() override { return edge_; }
  std::vector<std::string> argument_names() const override { return {"input"}; }

  int64_t in_features() const { return in_features_; }    // of the whole layer
  int64_t out_features() const { return out_features_; }  // of the whole layer

  at::Tensor weight, bias;
  LinearSharding sharding;

 private:
  int64_t in_features_, out_features_;
  PlannedEdge edge_;
};
TORCH_MODULE(Linear);

/// Two layers that are row-parallel alike share one reduction; without tensor parallelism this is two plain calls.
/// Shapes: as the layers'; returns both results.
std::pair<at::Tensor, at::Tensor> forward_together(Linear& first, const at::Tensor& first_x, Linear& second,
                                                   const at::Tensor& second_x);

}  // namespace pardiff::nn
