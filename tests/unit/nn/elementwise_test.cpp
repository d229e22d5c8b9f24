#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/nn/activation.h>
#include <pardiff/nn/embedding.h>
#include <pardiff/nn/modulation.h>
#include <pardiff/nn/rope.h>

#include <cmath>

#include "support/golden.h"

namespace pardiff::nn {
namespace {

using testing::absolute_error;

// Everything here takes another path, often in place, when no gradient is recorded. Both are held to float64.
class BothPaths : public ::testing::TestWithParam<bool> {
 protected:
  at::AutoGradMode mode_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Gradients, BothPaths, ::testing::Values(true, false),
                         [](const auto& parameter) { return parameter.param ? "Recorded" : "Off"; });

TEST_P(BothPaths, ActivationsAreTheirFormulas) {
  const auto x = at::linspace(-6, 6, 1001), wide = x.to(at::kDouble);
  const auto gelu = 0.5 * wide * (1 + at::tanh(std::sqrt(2 / M_PI) * (wide + 0.044715 * wide.pow(3))));
  EXPECT_LE(absolute_error(nn::silu(x.clone()), wide * wide.sigmoid()), 2e-6);
  EXPECT_LE(absolute_error(nn::gelu_tanh(x.clone()), gelu), 2e-6);
  EXPECT_LE(absolute_error(nn::gelu_new(x.clone()), gelu), 2e-6);
  EXPECT_LE(absolute_error(nn::quick_gelu(x.clone()), wide * at::sigmoid(1.702 * wide)), 2e-6);
}

TEST_P(BothPaths, AttentionStandsBesideTheFeedForward) {
  const auto attention = at::randn({2, 3, 4}), mlp = at::randn({2, 3, 16});
  EXPECT_LE(absolute_error(beside_gelu_tanh(attention, mlp), at::cat({attention, at::gelu(mlp, "tanh")}, -1)), 1e-6);
}

TEST_P(BothPaths, ModulatedNormIsOneFormulaForEveryBatch) {
  for (const int64_t batch : {1, 3}) {
    const auto x = at::randn({batch, 5, 16}), shift = at::randn({batch, 1, 16}), scale = at::randn({batch, 1, 16});
    const auto normed = at::layer_norm(x.to(at::kDouble), {16}, {}, {}, 1e-6);
    EXPECT_LE(absolute_error(modulated_norm(x, shift, scale), normed * (1 + scale) + shift), 3e-6) << batch;
  }
}

TEST_P(BothPaths, GatedResidualLeavesTheStreamAlone) {
  for (const int64_t batch : {1, 2}) {
    const auto x = at::randn({batch, 5, 16}), gate = at::randn({batch, 1, 16}), y = at::randn({batch, 5, 16});
    const auto kept = x.clone();
    EXPECT_LE(absolute_error(gated_residual(x, gate, y.clone()), x.to(at::kDouble) + gate * y), 1e-6);
    EXPECT_TRUE(at::equal(x, kept));
  }
}

// out = x cos + rot(x) sin with rot = (-x1, x0, -x3, x2, ...)
at::Tensor rotated_by_hand(const at::Tensor& x, const RotaryTable& table) {
  const auto pairs = x.to(at::kDouble).unflatten(-1, {-1, 2});
  const auto turned = at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
  return x.to(at::kDouble) * table.cosines().unsqueeze(1) + turned * table.sines().unsqueeze(1);
}

TEST_P(BothPaths, RotationTurnsNeighbouringChannels) {
  const auto table = rotary_table(at::randint(0, 200, {7, 3}).to(at::kFloat), {4, 6, 6});
  const auto first = at::randn({2, 3, 5, 16}), second = at::randn({2, 4, 5, 16});
  const auto joint = at::cat({first, second}, 1), kept = first.clone();
  EXPECT_LE(absolute_error(rotate(joint, table), rotated_by_hand(joint, table)), 2e-6);
  EXPECT_LE(absolute_error(rotate_joint(first, second, table), rotated_by_hand(joint, table)), 2e-6);
  EXPECT_TRUE(at::equal(first, kept));
  const auto half = joint.to(at::kBFloat16);
  const auto expected = rotated_by_hand(half, table);
  const auto together = rotate_joint(half.narrow(1, 0, 3), half.narrow(1, 3, 4), table);
  EXPECT_EQ(together.scalar_type(), at::kBFloat16);
  EXPECT_LE(testing::relative_error(together, expected), 4e-3);
  EXPECT_TRUE(at::equal(together, rotate(half, table)));
  EXPECT_EQ(rotate(joint.to(at::kDouble), table).scalar_type(), at::kDouble);
}

TEST_P(BothPaths, RotationTakesNoTokensAndNoHeads) {
  const auto table = rotary_table(at::zeros({4, 1}), {8}), none = rotary_table(at::zeros({0, 1}), {8});
  EXPECT_EQ(rotate_joint(at::randn({1, 0, 2, 8}), at::randn({1, 4, 2, 8}), table).sizes(),
            (at::IntArrayRef{1, 4, 2, 8}));
  EXPECT_EQ(rotate_joint(at::randn({1, 3, 0, 8}), at::randn({1, 1, 0, 8}), table).numel(), 0);
  EXPECT_EQ(rotate(at::randn({1, 0, 2, 8}), none).numel(), 0);
}

TEST(Rotary, RefusesIdsWithoutOneColumnPerAxis) {
  EXPECT_THROW(rotary_table(at::zeros({4, 2}), {4, 6, 6}), ShapeError);
  EXPECT_THROW(rotary_table(at::zeros({1, 4, 3}), {4, 6, 6}), ShapeError);
}

TEST(Sinusoid, StartsWithTheCosines) {
  const auto x = sinusoid(at::tensor({0.0, 752.0}), 256);
  EXPECT_EQ(x.sizes(), (at::IntArrayRef{2, 256}));
  EXPECT_TRUE(at::equal(x[0].narrow(0, 0, 128), at::ones({128})));
  EXPECT_TRUE(at::equal(x[0].narrow(0, 128, 128), at::zeros({128})));
  EXPECT_NEAR(x[1][0].item<double>(), std::cos(752.0), 1e-6);
  EXPECT_NEAR(x[1][128].item<double>(), std::sin(752.0), 1e-6);
  const double last = 752.0 * std::exp(-std::log(10000.0) * 127 / 128);
  EXPECT_NEAR(x[1][127].item<double>(), std::cos(last), 1e-6);
  EXPECT_THROW(sinusoid(at::zeros({2, 2})), ShapeError);
}

TEST(Sinusoid, Bfloat16TimesAreWidenedFirst) {
  EXPECT_TRUE(at::equal(sinusoid(at::tensor({3504.0}).to(at::kBFloat16)), sinusoid(at::tensor({3504.0}))));
}

}  // namespace
}  // namespace pardiff::nn
