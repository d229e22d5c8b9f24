#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/attention/attention.h>
#include <pardiff/attention/backend.h>
#include <pardiff/core/error.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>

#include "support/failure.h"
#include "support/golden.h"
#include "support/plain_attention.h"

namespace pardiff {
namespace {

using testing::expect_failure;
using testing::plain_attention;
using testing::random_normal;
using testing::relative_error;

TEST(Attention, AloneIsSoftmaxAttention) {
  const auto query = random_normal({2, 5, 4, 8}, 1), key = random_normal({2, 7, 4, 8}, 2),
             value = random_normal({2, 7, 4, 8}, 3);
  Attention attention;
  EXPECT_LE(relative_error(attention->forward(query, key, value), plain_attention(query, key, value)), 1e-12);
  EXPECT_LE(relative_error(attention->forward(query, key, value, {.scale = 0.7}),
                           plain_attention(query, key, value, {}, false, 0.7)),
            1e-12);
}

TEST(Attention, BroadcastsMasksOfEveryForm) {
  const auto query = random_normal({2, 5, 4, 8}, 1), key = random_normal({2, 7, 2, 8}, 2),
             value = random_normal({2, 7, 2, 8}, 3);
  const std::vector<std::vector<int64_t>> shapes = {{2, 7},       {1, 7},       {2, 1, 1, 7}, {2, 1, 5, 7},
                                                    {2, 4, 5, 7}, {1, 4, 5, 1}, {1, 1, 5, 1}, {1, 1, 1, 1},
                                                    {2, 4, 1, 1}, {1, 1, 5, 7}, {2, 1}};
  for (const auto& name : backends_that_can({.mask = true})) {
    Attention attention;
    attention->set_backend(name);
    for (const auto& shape : shapes) {
      const auto additive = at::randn(shape, at::kDouble), boolean = additive < 0.4;
      for (const auto& mask : {additive, boolean}) {
        for (const bool causal : {false, true}) {
          const auto got = attention->forward(query, key, value, {.mask = mask, .is_causal = causal});
          const auto expected = plain_attention(query, key, value, mask, causal);
          EXPECT_LE(testing::absolute_error(got, expected), 1e-12) << name << at::IntArrayRef(shape) << causal;
        }
      }
    }
  }
}

TEST(Attention, TakesAFloatMaskForHalfPrecision) {
  const auto query = random_normal({1, 4, 2, 8}, 1, at::kBFloat16);
  const auto mask = random_normal({1, 4}, 2, at::kFloat);
  Attention attention;
  const auto out = attention->forward(query, query, query, {.mask = mask});
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_LE(relative_error(out, plain_attention(query, query, query, mask)), 1e-2);
}

TEST(Attention, OfNothingIsNothing) {
  for (const auto& name : backends_that_can({})) {
    Attention attention;
    attention->set_backend(name);
    const auto some = random_normal({2, 3, 4, 8}, 1).requires_grad_(), none = at::empty({2, 0, 4, 8}, at::kDouble);
    EXPECT_EQ(attention->forward(none, some, some).sizes(), none.sizes());
    const auto without_keys = attention->forward(some, none, none);
    EXPECT_TRUE(at::equal(without_keys, at::zeros_like(some)));
    without_keys.sum().backward();
    EXPECT_TRUE(at::equal(some.grad(), at::zeros_like(some)));
    EXPECT_EQ(attention->forward(some.narrow(2, 0, 0), some.narrow(2, 0, 0), some.narrow(2, 0, 0)).numel(), 0);
    EXPECT_EQ(attention->forward(some.narrow(0, 0, 0), some.narrow(0, 0, 0), some.narrow(0, 0, 0)).numel(), 0);
  }
}

TEST(Attention, TakesTensorsOfAnyStride) {
  const auto query = random_normal({8, 4, 5, 2}, 1).permute({3, 2, 1, 0});  // innermost stride is not 1
  const auto key = random_normal({2, 4, 7, 8}, 2).transpose(1, 2),
             value = random_normal({1, 7, 1, 1}, 3).expand({2, 7, 4, 8});
  for (const auto& name : backends_that_can({})) {
    Attention attention;
    attention->set_backend(name);
    EXPECT_LE(relative_error(attention->forward(query, key, value), plain_attention(query, key, value)), 1e-12) << name;
    // So may the gradient be: a sum's is one number expanded.
    auto leaf = query.detach().requires_grad_();
    attention->forward(leaf, key, value).sum().backward();
    auto plain = query.detach().requires_grad_();
    plain_attention(plain, key, value).sum().backward();
    EXPECT_LE(testing::absolute_error(leaf.grad(), plain.grad()), 1e-12) << name;
  }
}

TEST(Attention, DifferentiatesOnlyWhatNeedsIt) {
  const auto query = random_normal({1, 5, 2, 8}, 1), key = random_normal({1, 5, 2, 8}, 2);
  const auto value = random_normal({1, 5, 2, 8}, 3).requires_grad_();
  Attention attention;
  const auto out = attention->forward(query, key, value);
  out.sum().backward();
  EXPECT_TRUE(value.grad().defined());
  EXPECT_FALSE(query.grad().defined());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(attention->forward(query, key, value).requires_grad());
}

TEST(Attention, RefusesASecondDerivative) {
  const auto query = random_normal({1, 3, 1, 8}, 1).requires_grad_();
  Attention attention;
  const auto out = attention->forward(query, query, query).sum();
  expect_failure<ConfigError>([&] { torch::autograd::grad({out}, {query}, {}, true, true); }, {"second derivative"});
}

TEST(Attention, NamesTheShapeThatDoesNotFit) {
  Attention attention;
  const auto make = [](std::initializer_list<int64_t> shape) { return random_normal(shape, 1); };
  const auto query = make({2, 5, 4, 8}), key = make({2, 7, 4, 8});
  const auto refused = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionOptions& options, const std::vector<std::string>& parts) {
    expect_failure<ShapeError>([&] { attention->forward(q, k, v, options); }, parts);
  };
  refused(query[0], key, key, {}, {"[batch, sequence, heads, head_dim]", "[5, 4, 8]"});
  refused(query, key, make({2, 6, 4, 8}), {}, {"[2, 7, 4, 8]", "[2, 6, 4, 8]"});
  refused(query, make({1, 7, 4, 8}), make({1, 7, 4, 8}), {}, {"Batch and head_dim"});
  refused(query, make({2, 7, 3, 8}), make({2, 7, 3, 8}), {}, {"4 query heads", "3 key heads"});
  refused(query, key.to(at::kFloat), key, {}, {"Double", "Float", "one dtype"});
  refused(query, key, key, {.mask = make({2, 8})}, {"mask", "[2, 8]", "7 keys"});
  refused(query, key, key, {.mask = make({2, 3, 5, 7})}, {"mask", "heads 4"});
  refused(query, key, key, {.mask = make({2, 5, 7})}, {"mask", "[2, 5, 7]"});
  refused(query, key, key, {.mask = at::ones({2, 7}, at::kLong)}, {"mask", "Long", "boolean nor additive"});
  refused(query, key, key, {.mask = make({2, 7}).requires_grad_()}, {"mask", "gradient"});
  expect_failure<ConfigError>(
      [&] { attention->forward(query, key, key, {.query_layout = SequenceLayout::split(5, 1)}); },
      {"layout", "not shared"});
}

TEST(AttentionModes, HaveDistinctNamesAndSayWhatTheyNeed) {
  std::set<std::string> names;
  for (const auto& mode : attention_modes()) {
    EXPECT_TRUE(names.insert(mode.name).second) << mode.name;
    EXPECT_FALSE(mode.requirement.empty() || mode.when_to_use.empty()) << mode.name;
    EXPECT_TRUE(mode.ring || !mode.ring_anything) << mode.name;
    EXPECT_TRUE(mode.ulysses || !mode.ulysses_anything) << mode.name;
  }
}

TEST(AttentionModes, CoverEveryValidConfiguration) {
  std::set<std::string> reached;
  for (const int ring : {1, 3}) {
    for (const int ulysses : {1, 2}) {
      for (const bool ring_anything : {false, true}) {
        for (const bool ulysses_anything : {false, true}) {
          const ContextParallelConfig config{.ring_degree = ring,
                                             .ulysses_degree = ulysses,
                                             .ulysses_anything = ulysses_anything,
                                             .ring_anything = ring_anything};
          const bool is_valid = (ring > 1 || !ring_anything) && (ulysses > 1 || !ulysses_anything);
          if (!is_valid) {
            EXPECT_THROW(attention_mode(config), ConfigError);
            continue;
          }
          const auto& mode = attention_mode(config);
          reached.insert(mode.name);
          EXPECT_EQ(mode.ring, ring > 1);
          EXPECT_EQ(mode.ulysses, ulysses > 1);
          // In unified either flag lifts the length rule, only ulysses_anything the head rule.
          EXPECT_EQ(mode.any_length, ring_anything || ulysses_anything || ring * ulysses == 1) << mode.name;
          EXPECT_EQ(mode.any_heads, ulysses_anything || ulysses == 1) << mode.name;
          EXPECT_EQ(mode.needs_lse(), ring > 1);
        }
      }
    }
  }
  EXPECT_EQ(reached.size(), attention_modes().size());
}

}  // namespace
}  // namespace pardiff
