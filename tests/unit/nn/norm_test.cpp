#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/nn/norm.h>

#include "support/golden.h"

namespace pardiff::nn {
namespace {

constexpr double kEps = 1e-6;

RMSNorm rms_norm(RmsRounding rounding, at::ScalarType dtype) {
  RMSNorm norm(64, RMSNormOptions{.eps = kEps, .rounding = rounding, .parameters = {.dtype = dtype}});
  at::NoGradGuard no_grad;
  norm->weight.normal_();
  return norm;
}

at::Tensor normed(const at::Tensor& x) {
  return x * at::rsqrt(x.square().mean(at::IntArrayRef{-1}, /*keepdim=*/true) + kEps);
}

TEST(RMSNorm, IsTheSameWithAndWithoutGradients) {
  const auto x = at::randn({3, 5, 64});
  for (const auto rounding : {RmsRounding::kOnce, RmsRounding::kBeforeWeight}) {
    auto norm = rms_norm(rounding, at::kFloat);
    const auto expected = normed(x.to(at::kDouble)) * norm->weight.to(at::kDouble);
    EXPECT_LE(testing::absolute_error(norm->forward(x), expected), 2e-6);
    at::NoGradGuard no_grad;
    EXPECT_LE(testing::absolute_error(norm->forward(x), expected), 2e-6);
  }
}

TEST(RMSNorm, RoundsOnceOrBeforeTheWeight) {
  const auto x = at::randn({257, 64}).to(at::kBFloat16);
  const auto wide = normed(x.to(at::kFloat));
  for (const bool with_gradients : {true, false}) {
    at::AutoGradMode mode(with_gradients);
    auto once = rms_norm(RmsRounding::kOnce, at::kBFloat16),
         before = rms_norm(RmsRounding::kBeforeWeight, at::kBFloat16);
    const auto once_expected = (wide * once->weight.to(at::kFloat)).to(at::kBFloat16);
    const auto before_expected = wide.to(at::kBFloat16) * before->weight;
    // The last bit of a float32 mean may tip a rounding here and there.
    EXPECT_LE(once->forward(x).ne(once_expected).sum().item<int64_t>(), 8);
    EXPECT_LE(before->forward(x).ne(before_expected).sum().item<int64_t>(), 8);
    EXPECT_GT(((wide.to(at::kBFloat16) * once->weight).ne(once_expected)).sum().item<int64_t>(), 100);
  }
}

TEST(RMSNorm, GivesTheDtypeThatFollows) {
  const auto x = at::randn({2, 64});
  EXPECT_EQ(rms_norm(RmsRounding::kOnce, at::kBFloat16)->forward(x).scalar_type(), at::kFloat);
  EXPECT_EQ(rms_norm(RmsRounding::kBeforeWeight, at::kHalf)->forward(x).scalar_type(), at::kHalf);
  EXPECT_EQ(rms_norm(RmsRounding::kBeforeWeight, at::kFloat)->forward(x.to(at::kHalf)).scalar_type(), at::kFloat);
  EXPECT_EQ(rms_norm(RmsRounding::kOnce, at::kDouble)->forward(x.to(at::kDouble)).scalar_type(), at::kDouble);
}

TEST(RMSNorm, ARowOfZerosHasAFiniteGradient) {
  auto x = at::zeros({1, 64}).requires_grad_(true);
  rms_norm(RmsRounding::kOnce, at::kFloat)->forward(x).sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
}

TEST(RMSNorm, LeavesItsInputAlone) {
  at::NoGradGuard no_grad;
  const auto x = at::randn({2, 64}), copy = x.clone();
  rms_norm(RmsRounding::kOnce, at::kFloat)->forward(x);
  EXPECT_TRUE(at::equal(x, copy));
}

TEST(LayerNorm, HasParametersOnlyIfAffine) {
  EXPECT_EQ(LayerNorm(8, LayerNormOptions{.affine = false})->parameters().size(), 0u);
  EXPECT_EQ(LayerNorm(8)->parameters().size(), 2u);
  const auto y = LayerNorm(8)->forward(at::randn({3, 8}) * 5 + 2);
  EXPECT_LE(testing::absolute_error(y.mean(-1), at::zeros({3})), 1e-6);
  EXPECT_LE(testing::absolute_error(y.var(-1, /*unbiased=*/false), at::ones({3})), 1e-4);
}

TEST(GroupNorm, RefusesGroupsThatDoNotDivide) {
  EXPECT_THROW(GroupNorm(5, 8), ConfigError);
  EXPECT_THROW(GroupNorm(0, 8), ConfigError);
  EXPECT_NO_THROW(GroupNorm(4, 8));
}

TEST(Norms, TakeNoMemoryBeforeTheyAreLoaded) {
  const ParameterOptions unallocated{.allocate = false};
  RMSNorm norm(1 << 20, RMSNormOptions{.parameters = unallocated});
  EXPECT_EQ(norm->weight.numel(), 1 << 20);
  EXPECT_LE(norm->weight.storage().nbytes(), 16u);
}

}  // namespace
}  // namespace pardiff::nn
