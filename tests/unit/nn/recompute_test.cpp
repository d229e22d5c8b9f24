#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/nn/recompute.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/failure.h"

namespace pardiff::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor leaf(double first) { return at::arange(first, first + 3, at::kDouble).requires_grad_(); }

// Two outputs: x w sin(x) and v x.
struct Problem {
  at::Tensor x = leaf(1), w = leaf(2), v = leaf(3), unused = leaf(4);
  int runs = 0;
  Segment segment = [this](const Tensors& inputs) {
    ++runs;
    return Tensors{inputs[0] * w * inputs[0].sin(), v * inputs[0]};
  };
  Tensors recomputed() { return nn::recomputed(segment, {x}, {w, v, unused}); }
};

TEST(Recompute, GivesTheValuesAndGradientsOfAPlainCall) {
  Problem plain, again;
  const auto expected = plain.segment({plain.x}), got = again.recomputed();
  (expected[0] + expected[1]).sum().backward();
  EXPECT_EQ(again.runs, 1);
  (got[0] + got[1]).sum().backward();
  EXPECT_EQ(again.runs, 2);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(got[i], expected[i]));
  EXPECT_TRUE(at::equal(again.x.grad(), plain.x.grad()));
  EXPECT_TRUE(at::equal(again.w.grad(), plain.w.grad()));
  EXPECT_TRUE(at::equal(again.v.grad(), plain.v.grad()));
  EXPECT_FALSE(again.unused.grad().defined());
}

TEST(Recompute, LeavesParametersOfAnUnusedOutputWithoutGradient) {
  Problem problem;
  problem.recomputed()[0].sum().backward();
  EXPECT_TRUE(problem.w.grad().defined());
  EXPECT_FALSE(problem.v.grad().defined());
}

TEST(Recompute, ReturnsOnlyTheGradientsAskedForAndAccumulatesNone) {
  Problem problem;
  const auto found = torch::autograd::grad({problem.recomputed()[0].sum()}, {problem.w});
  EXPECT_TRUE(at::equal(found[0], (problem.x * problem.x.sin()).detach()));
  EXPECT_FALSE(problem.w.grad().defined());
  EXPECT_FALSE(problem.x.grad().defined());
}

TEST(Recompute, RunsOnceWhenNoGradientIsRecorded) {
  Problem problem;
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(problem.recomputed()[0].requires_grad());
  EXPECT_EQ(problem.runs, 1);
}

TEST(Recompute, SeesThatAParameterWasChangedInBetween) {
  Problem problem;
  const auto loss = problem.recomputed()[0].sum();
  {
    const at::NoGradGuard no_grad;
    problem.w.add_(1);
  }
  testing::expect_failure<c10::Error>([&] { loss.backward(); }, {"modified by an inplace operation"});
}

TEST(Recompute, RefusesASecondDerivative) {
  Problem problem;
  const auto loss = problem.recomputed()[0].sum();
  testing::expect_failure<ConfigError>([&] { torch::autograd::grad({loss}, {problem.x}, {}, true, true); },
                                       {"second derivative", "create_graph"});
}

}  // namespace
}  // namespace pardiff::nn
