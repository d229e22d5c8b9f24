#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/attention/attention.h>
#include <pardiff/attention/backend.h>
#include <pardiff/core/error.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "support/failure.h"
#include "support/golden.h"
#include "support/plain_attention.h"

namespace pardiff {
namespace {

using testing::absolute_error;
using testing::expect_failure;
using testing::norm_relative_error;
using testing::plain_attention;
using testing::plain_lse;
using testing::random_normal;
using testing::relative_error;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class CpuBackend : public ::testing::TestWithParam<std::string> {
 protected:
  const AttentionBackend& backend() const { return attention_backend(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Names, CpuBackend,
                         ::testing::ValuesIn(backends_that_can({.device = at::kCPU, .lse = true, .mask = true})));

double tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-12 : 1e-5; }

KernelInputs inputs(at::ScalarType dtype, int64_t queries = 5, int64_t keys = 7) {
  return {random_normal({2, queries, 3, 8}, 1, dtype),
          random_normal({2, keys, 3, 8}, 2, dtype),
          random_normal({2, keys, 3, 8}, 3, dtype),
          {},
          false,
          0.3};
}

void expect_plain(const AttentionBackend& backend, const KernelInputs& given) {
  const auto tolerated = tolerance(given.query.scalar_type());
  const auto got = backend.forward(given);
  const auto out = plain_attention(given.query, given.key, given.value, given.mask, given.is_causal, given.scale);
  const auto lse = plain_lse(given.query, given.key, given.mask, given.is_causal, given.scale);
  EXPECT_EQ(got.out.scalar_type(), given.query.scalar_type());
  EXPECT_LE(relative_error(got.out, out), tolerated);
  const auto dead = lse == -kInfinity;
  EXPECT_TRUE(at::equal(dead, got.lse == -kInfinity));
  EXPECT_LE(relative_error(got.lse.masked_fill(dead, 0), lse.masked_fill(dead, 0)), tolerated);
}

// More queries and keys than a block of the kernels has, and tensors that lie as an exchange leaves them.
TEST_P(CpuBackend, TakesManyBlocksAndViews) {
  const auto packed = random_normal({1100, 2, 9, 24}, 4, at::kFloat).transpose(0, 1);
  for (const int64_t queries : {1, 63, 64, 65, 200}) {
    for (const int64_t keys : {1, 511, 512, 513, 1100}) {
      const KernelInputs given{packed.narrow(1, 0, queries).narrow(2, 0, 3),
                               packed.narrow(1, 0, keys).narrow(2, 2, 3),
                               packed.narrow(1, 0, keys).narrow(2, 4, 3),
                               {},
                               false,
                               0.7};
      expect_plain(backend(), given);
    }
  }
}

// Keys in three stretches, the first row blind to the first of them.
TEST_P(CpuBackend, GoesOnWithMoreKeys) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto whole = inputs(dtype, 150, 1500);
    const auto stretch = [&](int64_t start, int64_t length) {
      auto part = whole;
      part.key = whole.key.narrow(1, start, length);
      part.value = whole.value.narrow(1, start, length);
      part.is_part = true;
      return part;
    };
    auto seen = backend().forward(stretch(0, 300));
    seen.lse = seen.lse.to(at::kDouble);
    seen.out.narrow(1, 0, 1).zero_();
    seen.lse.narrow(1, 0, 1).fill_(-kInfinity);
    seen = backend().forward_onto(std::move(seen), stretch(300, 1000));
    seen = backend().forward_onto(std::move(seen), stretch(1300, 200));
    auto hidden = at::zeros({1, 1, 150, 1500}, whole.query.options());
    hidden.select(2, 0).narrow(-1, 0, 300).fill_(-kInfinity);
    EXPECT_EQ(seen.lse.scalar_type(), at::kDouble);
    EXPECT_LE(relative_error(seen.out, plain_attention(whole.query, whole.key, whole.value, hidden, false, 0.3)),
              tolerance(dtype));
    EXPECT_LE(relative_error(seen.lse, plain_lse(whole.query, whole.key, hidden, false, 0.3)), tolerance(dtype));
  }
}

// An LSE of some hundreds is rounded by 1e-5 in float32: going on must be no worse than having all keys at once.
TEST_P(CpuBackend, GoesOnExactlyAmongLargeLogits) {
  auto whole = inputs(at::kFloat, 150, 1200);
  whole.query = whole.query * 12;
  whole.key = whole.key * 12;
  whole.is_part = true;
  const auto wide = [&](const at::Tensor& x) { return x.to(at::kDouble); };
  const auto expected = plain_attention(wide(whole.query), wide(whole.key), wide(whole.value), {}, false, whole.scale);
  KernelOutput seen;
  for (int64_t start = 0; start < 1200; start += 300) {
    auto part = whole;
    part.key = whole.key.narrow(1, start, 300);
    part.value = whole.value.narrow(1, start, 300);
    if (start == 0) {
      seen = backend().forward(part);
      seen.lse = seen.lse.to(at::kDouble);
    } else {
      seen = backend().forward_onto(std::move(seen), part);
    }
  }
  const double at_once = norm_relative_error(wide(backend().forward(whole).out), expected);
  EXPECT_LE(norm_relative_error(wide(seen.out), expected), 1.2 * at_once);
}

TEST_P(CpuBackend, DoesNotDependOnTheThreads) {
  const int threads = at::get_num_threads();
  const auto given = inputs(at::kFloat, 150, 600);
  at::set_num_threads(1);
  const auto alone = backend().forward(given);
  at::set_num_threads(3);
  const auto shared = backend().forward(given);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(alone.out, shared.out));
  EXPECT_TRUE(at::equal(alone.lse, shared.lse));
}

TEST_P(CpuBackend, CarriesNan) {
  auto given = inputs(at::kFloat);
  given.key[0][3].fill_(std::nan(""));
  const auto out = backend().forward(given).out;
  EXPECT_TRUE(at::isnan(out[0]).all().item<bool>());
  EXPECT_FALSE(at::isnan(out[1]).any().item<bool>());
}

TEST_P(CpuBackend, IsSoftmaxAttentionWithItsNaturalLogSumExp) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto given = inputs(dtype);
    expect_plain(backend(), given);
    const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    EXPECT_EQ(backend().forward(given).lse.scalar_type(), wide);
  }
}

TEST_P(CpuBackend, ReturnsTheLogSumExpInFloat32ForHalfPrecision) {
  const auto given = inputs(at::kBFloat16);
  const auto got = backend().forward(given);
  EXPECT_EQ(got.out.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.lse.scalar_type(), at::kFloat);
  EXPECT_LE(relative_error(got.out, plain_attention(given.query, given.key, given.value, {}, false, 0.3)), 8e-3);
  EXPECT_LE(relative_error(got.lse, plain_lse(given.query, given.key, {}, false, 0.3)), 8e-3);
}

TEST_P(CpuBackend, AppliesMasksThatAreBroadcast) {
  for (const auto& shape :
       {std::array<int64_t, 4>{2, 3, 5, 7}, {1, 1, 5, 7}, {2, 1, 1, 7}, {1, 3, 1, 7}, {1, 1, 1, 7}}) {
    auto given = inputs(at::kDouble);
    given.mask = random_normal({shape[0], shape[1], shape[2], shape[3]}, 4);
    given.mask.masked_fill_(given.mask > 1, -kInfinity);
    expect_plain(backend(), given);
  }
}

TEST_P(CpuBackend, GivesZerosAndNoLogSumExpToARowWithoutKeys) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    auto given = inputs(dtype);
    given.mask = at::zeros({2, 1, 5, 7}, given.query.options());
    given.mask[0][0][2].fill_(-kInfinity);
    given.mask[1].fill_(-kInfinity);
    const auto got = backend().forward(given);
    for (const auto& [batch, row] : {std::pair{0, 2}, {1, 0}, {1, 4}}) {
      EXPECT_TRUE(at::equal(got.out[batch][row], at::zeros_like(got.out[batch][row])));
      EXPECT_TRUE((got.lse[batch][row] == -kInfinity).all().item<bool>());
    }
    expect_plain(backend(), given);
  }
}

TEST_P(CpuBackend, HidesLaterKeysWhenCausal) {
  auto given = inputs(at::kDouble, 6, 6);
  given.is_causal = true;
  expect_plain(backend(), given);
}

TEST_P(CpuBackend, TakesAnyStrideOutsideTheInnermostDimension) {
  auto given = inputs(at::kDouble);
  const auto packed = random_normal({5, 2, 9, 8}, 5);
  given.query = packed.narrow(2, 3, 3).transpose(0, 1);
  given.key = random_normal({2, 3, 7, 8}, 6).transpose(1, 2);
  expect_plain(backend(), given);
}

// Two blocks of keys, each differentiated with the final result of both: what the ring does.
TEST_P(CpuBackend, DifferentiatesABlockOfALargerSoftmax) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto both = inputs(dtype, 5, 7);
    const auto grad_out = random_normal({2, 5, 3, 8}, 9, dtype);
    auto query = both.query.to(at::kDouble).requires_grad_(), key = both.key.to(at::kDouble).requires_grad_(),
         value = both.value.to(at::kDouble).requires_grad_();
    plain_attention(query, key, value, {}, false, both.scale).backward(grad_out.to(at::kDouble));

    const auto final = backend().forward(both);
    auto grad_query = at::zeros_like(both.query);
    for (const auto& [start, length] : {std::pair{0, 3}, {3, 4}}) {
      auto block = both;
      block.key = both.key.narrow(1, start, length);
      block.value = both.value.narrow(1, start, length);
      const auto gradients = backend().backward(grad_out, block, final);
      EXPECT_LE(relative_error(gradients.key, key.grad().narrow(1, start, length)), tolerance(dtype));
      EXPECT_LE(relative_error(gradients.value, value.grad().narrow(1, start, length)), tolerance(dtype));
      grad_query += gradients.query;
    }
    EXPECT_LE(relative_error(grad_query, query.grad()), tolerance(dtype));
  }
}

TEST(AttentionBackends, HaveDistinctNamesAndAnswerForEveryDevice) {
  std::set<std::string> names;
  for (const auto* backend : attention_backends()) {
    EXPECT_TRUE(names.insert(backend->name()).second) << backend->name();
    EXPECT_FALSE(backend->description().empty());
    EXPECT_EQ(&attention_backend(backend->name()), backend);
  }
  for (const auto* name : {"native", "math", "_native_flash", "_native_efficient", "_native_cudnn"}) {
    EXPECT_TRUE(names.count(name)) << name;
  }
  const auto here = backends_that_can({.device = at::kCPU, .lse = true, .mask = true, .backward = true});
  EXPECT_EQ(std::set<std::string>(here.begin(), here.end()), (std::set<std::string>{"native", "math"}));
}

// Whether the kernels run is a GPU's to show (docs/gpu.md); what they claim can be asked anywhere.
TEST(AttentionBackends, SayWhichCallsTheyTakeOnCuda) {
  const auto those_for = [](at::ScalarType dtype, bool mask, int64_t head_dim) {
    return backends_that_can(
        {.device = at::kCUDA, .lse = true, .mask = mask, .backward = true, .dtype = dtype, .head_dim = head_dim});
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(those_for(at::kBFloat16, false, 128),
            (Names{"native", "math", "_native_flash", "_native_efficient", "_native_cudnn"}));
  EXPECT_EQ(those_for(at::kHalf, true, 64), (Names{"native", "math", "_native_efficient", "_native_cudnn"}));
  EXPECT_EQ(those_for(at::kBFloat16, false, 256), (Names{"native", "math", "_native_flash", "_native_efficient"}));
  EXPECT_EQ(those_for(at::kFloat, true, 8), (Names{"native", "math", "_native_efficient"}));
  EXPECT_EQ(those_for(at::kDouble, false, 8), (Names{"native", "math"}));
  EXPECT_EQ(those_for(at::kBFloat16, false, 12), (Names{"native", "math"}));
}

TEST(AttentionBackends, RefuseACallThatTheyCannotDoAndTakeACorrectedOne) {
  Attention attention;
  const auto x = random_normal({1, 4, 2, 8}, 1);
  attention->set_backend("_native_flash");
  expect_failure<ConfigError>([&] { attention->forward(x, x, x); },
                              {"'_native_flash'", "on cpu", "CUDA only", "native, math"});
  attention->set_backend("math");
  EXPECT_LE(relative_error(attention->forward(x, x, x), plain_attention(x, x, x)), 1e-12);
}

TEST(AttentionBackends, AreFoundInAnySpelling) { EXPECT_EQ(attention_backend("NATIVE").name(), "native"); }

TEST(AttentionBackends, ListTheKnownNamesForAnUnknownOne) {
  expect_failure<ConfigError>([] { attention_backend("natve"); }, {"'natve'", "native", "math", "_native_cudnn"});
  Attention attention;
  expect_failure<ConfigError>([&] { attention->set_backend(""); }, {"''", "native"});
  EXPECT_EQ(attention->backend(), "native");
}

TEST(AttentionBackends, NameTheNearestOneForANameOfTheReference) {
  const char* reference_names[] = {"flash",
                                   "flash_hub",
                                   "flash_varlen",
                                   "flash_4_hub",
                                   "flash_varlen_hub",
                                   "_flash_3",
                                   "_flash_3_hub",
                                   "_flash_varlen_3",
                                   "_flash_3_varlen_hub",
                                   "aiter_fa2_hub",
                                   "flex",
                                   "npu",
                                   "_native_npu",
                                   "_native_neuron",
                                   "_native_math",
                                   "_native_xla",
                                   "sage",
                                   "sage_hub",
                                   "sage_varlen",
                                   "sage_blackwell_hub",
                                   "xformers",
                                   "_sage_qk_int8_pv_fp8_cuda"};
  for (const auto* name : reference_names) {
    const auto message = expect_failure<ConfigError>([&] { attention_backend(name); }, {name, "nearest one here is '"});
    const auto start = message.find("nearest one here is '") + 21;
    EXPECT_NO_THROW(attention_backend(message.substr(start, message.find('\'', start) - start))) << name;
  }
}

}  // namespace
}  // namespace pardiff
