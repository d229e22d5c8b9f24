#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <pardiff/nn/activation.h>
#include <pardiff/nn/modulation.h>
#include <pardiff/nn/rope.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <thread>

#include "nn/kernels/choice.h"
#include "nn/kernels/elementwise.h"
#include "nn/kernels/product.h"
#include "support/golden.h"

namespace pardiff::nn {
namespace {

using testing::absolute_error;

// Every kernel in the form that each kind of processor would run, as far as this one can, against the engine's
// operators in float64. Widths: below, at and off a multiple of every vector's length.
class EveryTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { choose(GetParam()); }
  void TearDown() override { choose(0); }  // back to the best

  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  const at::NoGradGuard no_grad_;
};
INSTANTIATE_TEST_SUITE_P(Kernels, EveryTarget, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& parameter) { return std::string(hwy::TargetName(parameter.param)); });

constexpr int64_t kWidths[] = {1, 2, 5, 16, 30, 33, 64, 130, 768};

kernels::Shape shape_of(const at::Tensor& x) { return {x.size(0), x.size(1), x.size(2)}; }

at::Tensor norm_of(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
  auto out = at::empty_like(x);
  kernels::modulated_norm(x.const_data_ptr<float>(), shift.const_data_ptr<float>(), scale.const_data_ptr<float>(),
                          out.mutable_data_ptr<float>(), shape_of(x), 1e-6);
  return out;
}

at::Tensor residual_of(const at::Tensor& x, const at::Tensor& gate, at::Tensor y) {
  kernels::gated_residual(x.const_data_ptr<float>(), gate.const_data_ptr<float>(), y.mutable_data_ptr<float>(),
                          shape_of(x));
  return y;
}

// With room beside every row of the result, which stays as it was.
at::Tensor gelu_of(const at::Tensor& x) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  auto wide = at::full({rows, width + 3}, 7.0);
  kernels::gelu_tanh(x.const_data_ptr<float>(), wide.mutable_data_ptr<float>(), width + 3, rows, width);
  EXPECT_TRUE(at::all(wide.narrow(1, width, 3) == 7).item<bool>());
  return wide.narrow(1, 0, width).reshape(x.sizes());
}

at::Tensor silu_of(at::Tensor x) {
  kernels::silu(x.mutable_data_ptr<float>(), x.numel());
  return x;
}

TEST_P(EveryTarget, ModulatedNorm) {
  for (const int64_t width : kWidths) {
    const auto x = at::randn({2, 3, width}) + 4, shift = at::randn({2, 1, width}), scale = at::randn({2, 1, width});
    const auto normed = at::layer_norm(x.to(at::kDouble), {width}, {}, {}, 1e-6);
    // The norm of two numbers magnifies the rounding of what lies close together.
    EXPECT_LE(absolute_error(norm_of(x, shift, scale), normed * (1 + scale) + shift), width > 2 ? 2e-5 : 2e-3) << width;
  }
}

TEST_P(EveryTarget, GatedResidual) {
  for (const int64_t width : kWidths) {
    const auto x = at::randn({2, 3, width}), gate = at::randn({2, 1, width}), y = at::randn({2, 3, width});
    EXPECT_LE(absolute_error(residual_of(x, gate, y.clone()), x.to(at::kDouble) + gate.to(at::kDouble) * y), 1e-6)
        << width;
  }
}

// Into the tokens [start, start + S) of `joint` [B, tokens, H, head_dim].
void norm_and_rotate_into(const at::Tensor& joint, int64_t start, const at::Tensor& x, const at::Tensor& weight,
                          const RotaryTable& table) {
  kernels::normed_rotation(x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                           at::view_as_real(table.rotation).const_data_ptr<float>(),
                           joint.mutable_data_ptr<float>() + start * joint.stride(1),
                           {x.size(0), x.size(1), x.size(2), x.size(3), joint.stride(0)}, 1e-6);
}

TEST_P(EveryTarget, NormAndRotation) {
  for (const int64_t width : {2, 6, 16, 30, 34, 64, 130}) {
    const auto weight = at::randn({width}), x = at::randn({2, 7, 3, width}), wide = x.to(at::kDouble);
    const auto table = rotary_table(at::randint(0, 200, {7, 1}).to(at::kFloat), {width});
    const auto expected = rotate(wide * at::rsqrt(wide.square().mean(-1, true) + 1e-6) * weight, table);
    const auto own = x.clone();
    norm_and_rotate_into(own, 0, own, weight, table);
    EXPECT_LE(absolute_error(own, expected), 4e-6) << width;
    const auto joint = at::full({2, 9, 3, width}, 7.0);
    norm_and_rotate_into(joint, 2, x, weight, table);
    EXPECT_TRUE(at::equal(joint.narrow(1, 2, 7), own)) << width;
    EXPECT_TRUE(at::all(joint.narrow(1, 0, 2) == 7).item<bool>()) << width;
  }
}

TEST_P(EveryTarget, Activations) {
  for (const int64_t width : kWidths) {
    const auto x = at::randn({3, width}) * 4, wide = x.to(at::kDouble);
    EXPECT_LE(absolute_error(gelu_of(x), at::gelu(wide, "tanh")), 2e-6) << width;
    EXPECT_LE(absolute_error(silu_of(x.clone()), at::silu(wide)), 2e-6) << width;
  }
}

TEST_P(EveryTarget, ActivationsFarOut) {
  const auto x = at::tensor({-1e30F, -1e4F, -90.0F, -0.0F, 0.0F, 90.0F, 1e4F, std::nanf("")});
  for (const auto& y : {gelu_of(x), silu_of(x.clone())}) {
    EXPECT_LE(y.narrow(0, 0, 5).abs().max().item<float>(), 1e-6F);
    EXPECT_TRUE(at::equal(y.narrow(0, 5, 2), x.narrow(0, 5, 2)));
    EXPECT_TRUE(std::isnan(y[7].item<float>()));
  }
}

TEST_P(EveryTarget, ResultsDoNotDependOnTheThreads) {
  const int threads = at::get_num_threads();
  const auto x = at::randn({1, 300, 260}), gate = at::randn({1, 1, 260});
  const auto table = rotary_table(at::arange(300).unsqueeze(1), {260});
  const auto results = [&](int count) {
    at::set_num_threads(count);
    auto turned = at::empty({1, 300, 1, 260});
    norm_and_rotate_into(turned, 0, x.view({1, 300, 1, 260}), gate.flatten(), table);
    return std::vector{norm_of(x, gate, gate), residual_of(x, gate, x.clone()), gelu_of(x), silu_of(x.clone()), turned};
  };
  const auto alone = results(1), shared = results(3);
  at::set_num_threads(threads);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::equal(alone[i], shared[i])) << i;
}

#ifndef __clang__  // builds for the sanitizers have no OpenMP
int64_t threads_of_this_process() {
  namespace fs = std::filesystem;
  return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
}

// A thread that has not worked with others yet: its helpers are those of this call.
TEST(Threads, AreAsManyAsTheEngineHas) {
  int64_t started = 0;
  auto x = at::ones({1 << 20});
  std::thread worker([&] {
    at::set_num_threads(3);
    const auto before = threads_of_this_process();
    kernels::silu(x.mutable_data_ptr<float>(), x.numel());
    started = threads_of_this_process() - before;
  });
  worker.join();
  EXPECT_EQ(started, 2);
}
#endif

TEST(Choice, GradientsOtherDtypesPiecesAndNarrowRowsStayWithTheEngine) {
  const auto x = at::randn({4, 768});
  EXPECT_FALSE(kernels::may_fuse(x));  // gradients are on
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(kernels::may_fuse(x, x[0]));
  EXPECT_TRUE(kernels::may_fuse(x[0], x));
  EXPECT_FALSE(kernels::may_fuse(at::randn({1000, 767}), x));
  EXPECT_FALSE(kernels::may_fuse(x, at::Tensor()));
  EXPECT_FALSE(kernels::may_fuse(x, x.to(at::kDouble)));
  EXPECT_FALSE(kernels::may_fuse(x, x.to(at::kBFloat16)));
  EXPECT_FALSE(kernels::may_fuse(x, x.t()));
}

// Of the layers' own functions, at a size that is worth fusing.
TEST(Choice, FusedAndPlainAgree) {
  const at::NoGradGuard no_grad;
  for (const int64_t batch : {1, 2}) {
    const auto x = at::randn({batch, 30, 768}), modulation = at::randn({batch, 1, 3 * 768});
    const auto parts = modulation.chunk(3, -1);
    ASSERT_TRUE(kernels::may_fuse(x));
    const auto wide = x.to(at::kDouble);
    const auto normed = at::layer_norm(wide, {768}, {}, {}, 1e-6);
    EXPECT_LE(absolute_error(modulated_norm(x, parts[0], parts[1]), normed * (1 + parts[1]) + parts[0]), 5e-6);
    EXPECT_LE(absolute_error(gated_residual(x, parts[2], x.clone()), wide + parts[2] * wide), 2e-6);
    EXPECT_LE(absolute_error(nn::gelu_tanh(x.clone()), at::gelu(wide, "tanh")), 2e-6);
    EXPECT_LE(absolute_error(nn::silu(x.clone()), at::silu(wide)), 2e-6);
    EXPECT_LE(absolute_error(beside_gelu_tanh(x, x), at::cat({wide, at::gelu(wide, "tanh")}, -1)), 2e-6);
  }
}

// Heads of two lengths beside each other, none among them; narrow ones take the engine's operators.
TEST(Choice, NormAndRotationAgreeWithTheLayers) {
  const at::NoGradGuard no_grad;
  for (const int64_t width : {32, 64, 128}) {
    RMSNorm first(width), second(width);
    first->weight.normal_();
    second->weight.normal_();
    for (const auto& [text, image] : std::vector<std::pair<int64_t, int64_t>>{{3, 5}, {0, 4}, {6, 0}}) {
      const auto a = at::randn({2, text, 3, width}), b = at::randn({2, image, 3, width}), kept = a.clone();
      const auto table = rotary_table(at::arange(text + image).unsqueeze(1), {width});
      const auto layers = rotate(at::cat({first->forward(a), second->forward(b)}, 1), table);
      EXPECT_LE(absolute_error(norm_and_rotate_joint({first, a}, {second, b}, table), layers), 3e-6) << width;
      EXPECT_TRUE(at::equal(a, kept));
      const auto alone = rotate(first->forward(a), table.rows(0, text));
      EXPECT_LE(absolute_error(norm_and_rotate(first, a.clone(), table.rows(0, text)), alone), 3e-6) << width;
    }
    EXPECT_EQ(norm_and_rotate(first, at::empty({2, 4, 0, width}), rotary_table(at::zeros({4, 1}), {width})).numel(), 0);
  }
  EXPECT_FALSE(kernels::may_fuse_heads(at::randn({1, 9, 30, 63})));
  EXPECT_TRUE(kernels::may_fuse_heads(at::randn({1, 1, 1, 64}), at::randn({64})));
}

// Both sides of the numbers of rows and of weights from which oneDNN is taken.
TEST(Product, IsTheLinearLayer) {
  const at::NoGradGuard no_grad;
  const std::vector<std::vector<int64_t>> shapes = {{1, 7},    {9, 7},       {7},         {1, 350}, {2, 350},
                                                    {19, 350}, {3, 40, 350}, {1, 0, 350}, {350}};
  for (const auto& shape : shapes) {
    const auto x = at::randn(shape), weight = at::randn({shape.back() == 350 ? 400 : 9, shape.back()}),
               bias = at::randn({weight.size(0)});
    for (const auto& b : {bias, at::Tensor()}) {
      const auto expected = at::linear(x.to(at::kDouble), weight.to(at::kDouble), b.defined() ? b.to(at::kDouble) : b);
      const auto y = kernels::linear(x, weight, b);
      EXPECT_EQ(y.sizes(), expected.sizes());
      if (y.numel() > 0) {
        EXPECT_LE(absolute_error(y, expected), 1e-4);
      }
    }
  }
  const auto strided = at::randn({350, 20}).t(), weight = at::randn({400, 350});
  EXPECT_LE(absolute_error(kernels::linear(strided, weight, {}), at::linear(strided, weight)), 1e-4);
}

// What ranks that hold some of the rows get is what one rank gets.
TEST(Product, ComputesARowAlikeWhateverTheOthers) {
  const at::NoGradGuard no_grad;
  const auto x = at::randn({160, 350}), weight = at::randn({400, 350}), whole = kernels::linear(x, weight, {});
  for (const int64_t rows : {2, 3, 16, 31, 64, 100}) {
    EXPECT_TRUE(at::equal(kernels::linear(x.narrow(0, 5, rows).contiguous(), weight, {}), whole.narrow(0, 5, rows)))
        << rows;
  }
}

}  // namespace
}  // namespace pardiff::nn
