#pragma once
#include <pardiff/nn/boundary.h>
#include <pardiff/nn/parameter.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

namespace pardiff::nn {

/// Where an RMSNorm of half-precision tensors rounds.
enum class RmsRounding {
  kOnce,          // everything in float32, one rounding at the end (FLUX)
  kBeforeWeight,  // rounded to the weight's dtype, then multiplied by the weight (T5)
};

struct RMSNormOptions {
  double eps = 1e-6;
  RmsRounding rounding = RmsRounding::kOnce;
  ParameterOptions parameters{};
};

/// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension.
/// Shapes: x [..., dim]; returns the same; parameter `weight` [dim].
/// Precision: float32 inside (float64 stays); the result has x's dtype, or the weight's under kBeforeWeight if that is
/// a half-precision one.
class RMSNormImpl : public torch::nn::Module, public EdgeOwner {
 public:
  explicit RMSNormImpl(int64_t dim, const RMSNormOptions& options = {});

  at::Tensor forward(const at::Tensor& x);

  PlannedEdge& edge() override { return edge_; }
  std::vector<std::string> argument_names() const override { return {"input"}; }

  double eps() const { return eps_; }
  RmsRounding rounding() const { return rounding_; }

  at::Tensor weight;

 private:
  double eps_;
  RmsRounding rounding_;
  PlannedEdge edge_;
};
TORCH_MODULE(RMSNorm);

struct LayerNormOptions {
  double eps = 1e-5;
  bool affine = true;
  ParameterOptions parameters{};
};

/// y = (x - mean) / sqrt(variance + eps) over the last dimension, times `weight` plus `bias` ([dim] each) if affine.
/// Shapes: x [..., dim]; returns the same.
/// Precision: float32 inside, one rounding at the end.
class LayerNormImpl : public torch::nn::Module, public EdgeOwner {
 public:
  explicit LayerNormImpl(int64_t dim, const LayerNormOptions& options = {});

  at::Tensor forward(const at::Tensor& x);

  PlannedEdge& edge() override { return edge_; }
  std::vector<std::string> argument_names() const override { return {"input"}; }

  at::Tensor weight, bias;  // undefined unless affine

 private:
  int64_t dim_;
  double eps_;
  PlannedEdge edge_;
};
TORCH_MODULE(LayerNorm);

struct GroupNormOptions {
  double eps = 1e-6;
  ParameterOptions parameters{};
};

/// Normalises each of `groups` groups of channels, then times `weight` plus `bias` ([channels] each).
/// Shapes: x [B, channels, ...]; returns the same.
class GroupNormImpl : public torch::nn::Module, public EdgeOwner {
 public:
  /// Throws: ConfigError unless groups divides channels.
  GroupNormImpl(int64_t groups, int64_t channels, const GroupNormOptions& options = {});

  at::Tensor forward(const at::Tensor& x);

  PlannedEdge& edge() override { return edge_; }
  std::vector<std::string> argument_names() const override { return {"input"}; }

  int64_t groups() const { return groups_; }
  double eps() const { return eps_; }

  at::Tensor weight, bias;

 private:
  int64_t groups_;
  double eps_;
  PlannedEdge edge_;
};
TORCH_MODULE(GroupNorm);

}  // namespace pardiff::nn
