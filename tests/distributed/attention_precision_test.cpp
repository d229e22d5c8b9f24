#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "support/attention_problem.h"
#include "support/golden.h"
#include "support/plain_attention.h"

namespace pardiff {
namespace {

using testing::AttentionAnswer;
using testing::AttentionProblem;
using testing::AttentionWay;
using testing::MaskKind;
using testing::SolvedProblem;

const WorldOptions kOptions{.device = "cpu", .timeout_s = 60};

// Every rank's answer, in rank order.
std::vector<AttentionAnswer> answers(const SolvedProblem& solved, const AttentionWay& way) {
  std::vector<AttentionAnswer> all(way.ranks());
  run_as_threads(
      way.ranks(), [&](World& world) { all[world.rank()] = testing::answer(solved, way, world); }, kOptions);
  return all;
}

void expect_equal_bytes(const std::vector<AttentionAnswer>& first, const std::vector<AttentionAnswer>& second,
                        const std::string& what) {
  for (size_t rank = 0; rank < first.size(); ++rank) {
    EXPECT_TRUE(at::equal(first[rank].out, second[rank].out)) << what;
    EXPECT_TRUE(at::equal(first[rank].grad_query, second[rank].grad_query)) << what;
    EXPECT_TRUE(at::equal(first[rank].grad_key, second[rank].grad_key)) << what;
    EXPECT_TRUE(at::equal(first[rank].grad_value, second[rank].grad_value)) << what;
  }
}

// The largest errors of any rank.
testing::AttentionErrors errors_of(const SolvedProblem& solved, const AttentionWay& way) {
  std::mutex mutex;
  testing::AttentionErrors largest;
  run_as_threads(
      way.ranks(),
      [&](World& world) {
        const auto errors = testing::attention_errors(solved, way, world);
        const std::lock_guard lock(mutex);
        largest = {std::max(largest.out, errors.out), std::max(largest.gradients, errors.gradients)};
      },
      kOptions);
  return largest;
}

// Answers again after a change of the inputs.
void solve_again(SolvedProblem& solved) {
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).detach().clone().requires_grad_(); };
  const auto query = leaf(solved.query), key = leaf(solved.key), value = leaf(solved.value);
  const auto out = testing::plain_attention(query, key, value, solved.mask, solved.problem.mask == MaskKind::kCausal);
  (out * solved.weight.to(at::kDouble)).sum().backward();
  solved.out = out.detach();
  solved.grad_query = query.grad();
  solved.grad_key = key.grad();
  solved.grad_value = value.grad();
}

const AttentionProblem kUneven{.image = 11,
                               .text = 6,
                               .heads = 6,
                               .key_heads = 3,
                               .batch = 2,
                               .mask = MaskKind::kAdditive,
                               .dtype = at::kFloat,
                               .seed = 5};

TEST(AttentionModes, GiveTheSameBytesTwice) {
  const auto solved = testing::solve(kUneven);
  for (const int ranks : {2, 3, 4, 6}) {
    for (const auto& way : testing::attention_ways(ranks)) {
      if (way.accepts(kUneven)) expect_equal_bytes(answers(solved, way), answers(solved, way), way.to_string());
    }
  }
}

TEST(RingAttention, RotatesToTheSameBytesAsItGathers) {
  const auto solved = testing::solve(kUneven);
  int compared = 0;
  for (const int ranks : {2, 3, 4, 6}) {
    for (auto way : testing::attention_ways(ranks)) {
      if (!way.mode->ring || !way.rotate || !way.accepts(kUneven)) continue;
      const auto rotated = answers(solved, way);
      way.rotate = false;
      expect_equal_bytes(rotated, answers(solved, way), way.to_string());
      ++compared;
    }
  }
  EXPECT_GT(compared, 4);
}

// Logits up to +200 and -200 that are exact in float32, so that only the softmax and the merges can go wrong. The last
// bit of a log-sum-exp near 200 is 1.5e-5 in float32, which all probabilities of a row inherit in the backward pass,
// also on one rank.
TEST(AttentionModes, AreExactForLogitsOf200) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const AttentionProblem problem{
        .image = 9, .text = 4, .heads = 4, .key_heads = 4, .batch = 2, .dtype = dtype, .head_dim = 16, .seed = 8};
    auto solved = testing::solve(problem);
    const auto random = testing::random_normal({2, 13, 4, 1}, 3, dtype);
    const auto size = 5 - (random.abs() * 8).floor().clamp_max(8) / 64;  // 40 size is the logit
    solved.query = at::full_like(solved.query, 10);
    solved.key = (at::sign(random) * size).expand({2, 13, 4, 16}).contiguous();
    solve_again(solved);
    for (const int ranks : {1, 2, 3, 4}) {
      for (const auto& way : testing::attention_ways(ranks)) {
        if (!way.accepts(problem)) continue;
        const auto errors = errors_of(solved, way);
        EXPECT_LE(errors.out, testing::tolerance_of(dtype)) << way.to_string();
        EXPECT_LE(errors.gradients, 50 * testing::tolerance_of(dtype)) << way.to_string();
      }
    }
  }
}

TEST(AttentionModes, GiveZerosWhereEveryBlockOrWholeBlocksAreHidden) {
  AttentionProblem problem{.image = 12, .text = 0, .heads = 4, .key_heads = 4, .batch = 2, .mask = MaskKind::kBoolean};
  auto solved = testing::solve(problem);
  // Batch row 0 sees the keys of the last quarter only, so that most ring ranks meet hidden blocks first; row 1
  // nothing.
  solved.mask = at::zeros({2, 1, 12, 12}, at::kBool);
  solved.mask[0].slice(2, 9, 12).fill_(true);
  solve_again(solved);
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& way : testing::attention_ways(ranks)) {
      if (!way.accepts(problem)) continue;
      EXPECT_LE(errors_of(solved, way).largest(), 1e-12) << way.to_string();
      for (const auto& of_rank : answers(solved, way)) {
        for (const auto& tensor : {of_rank.out, of_rank.grad_query, of_rank.grad_key, of_rank.grad_value}) {
          EXPECT_TRUE(at::equal(tensor[1], at::zeros_like(tensor[1]))) << way.to_string();
        }
      }
    }
  }
}

double bfloat16_error(const SolvedProblem& solved, const AttentionWay& way) {
  const auto all = answers(solved, way);
  std::vector<at::Tensor> parts;
  for (const auto& of_rank : all) parts.push_back(of_rank.out);
  return testing::norm_relative_error(at::cat(parts, 1), solved.out);
}

AttentionWay ring_way(int ranks, bool rotate, const std::string& backend) {
  for (const auto& way : testing::attention_ways(ranks)) {
    if (way.backend == backend && way.rotate == rotate && way.ulysses == 1) return way;
  }
  throw std::runtime_error("no such way");
}

TEST(RingAttention, OfFourRanksIsAsExactInBfloat16AsOneRank) {
  for (const double width : {1.0, 4.0}) {  // nearly equal weights, and few that count
    const AttentionProblem problem{
        .image = 256, .text = 0, .heads = 4, .key_heads = 4, .dtype = at::kBFloat16, .head_dim = 64, .seed = 4};
    auto solved = testing::solve(problem);
    solved.query = solved.query * width;
    solve_again(solved);
    const double alone = bfloat16_error(solved, ring_way(1, true, "native"));
    EXPECT_GT(alone, 1e-4);
    for (const bool rotate : {true, false}) {
      for (const auto* backend : {"native", "math"}) {
        EXPECT_LE(bfloat16_error(solved, ring_way(4, rotate, backend)), 1.2 * alone) << backend << " " << width;
      }
    }
  }
}

TEST(RingAttention, MergesInTheInputsDtypeWhenToldNotToConvert) {
  const AttentionProblem problem{.image = 64, .text = 0, .heads = 2, .key_heads = 2, .dtype = at::kBFloat16, .seed = 6};
  const auto solved = testing::solve(problem);
  for (const auto* backend : {"native", "math"}) {
    auto way = ring_way(4, true, backend);
    const double converted = bfloat16_error(solved, way);
    way.convert_to_fp32 = false;
    const double unconverted = bfloat16_error(solved, way);
    EXPECT_LT(converted, unconverted) << backend;
    EXPECT_LE(unconverted, 2e-2) << backend;
  }
}

// Lengths of query and key that differ, both split: cross-attention to another sequence.
TEST(AttentionModes, ShareCrossAttentionWithSplitKeysOfAnotherLength) {
  const auto query = testing::random_normal({2, 7, 6, 8}, 1), key = testing::random_normal({2, 10, 3, 8}, 2),
             value = testing::random_normal({2, 10, 3, 8}, 3), weight = testing::random_normal({2, 7, 6, 8}, 4);
  auto mask = testing::random_normal({2, 10}, 5) < 0.7;
  mask[1].fill_(false);
  const auto leaf = [](const at::Tensor& x) { return x.detach().clone().requires_grad_(); };
  const auto plain_query = leaf(query), plain_key = leaf(key), plain_value = leaf(value);
  const auto expected = testing::plain_attention(plain_query, plain_key, plain_value, mask);
  (expected * weight).sum().backward();
  for (const int ranks : {2, 3, 4, 6}) {
    for (const auto& way : testing::attention_ways(ranks)) {
      if (!way.mode->any_length || !way.mode->any_heads) continue;
      run_as_threads(
          ranks,
          [&](World& world) {
            const auto [query_begin, query_end] = testing::share_of(7, ranks, world.rank());
            const auto [key_begin, key_end] = testing::share_of(10, ranks, world.rank());
            const auto q = leaf(query.slice(1, query_begin, query_end)), k = leaf(key.slice(1, key_begin, key_end)),
                       v = leaf(value.slice(1, key_begin, key_end));
            Attention attention;
            attention->set_backend(way.backend);
            attention->share(testing::share_attention(world, way));
            const auto before = world.counter().counts();
            const auto out = attention->forward(q, k, v,
                                                {.query_layout = SequenceLayout::split(7, ranks),
                                                 .key_layout = SequenceLayout::split(10, ranks),
                                                 .mask = mask});
            // Query, key and value still travel in one exchange.
            if (way.ring == 1) {
              EXPECT_EQ(difference(world.counter().counts(), before).at("all_to_all").calls, 2);
            }
            out.backward(weight.slice(1, query_begin, query_end));
            const auto close = [&](const at::Tensor& actual, const at::Tensor& whole, int64_t begin, int64_t end) {
              EXPECT_LE(testing::absolute_error(actual, whole.slice(1, begin, end)), 1e-12) << way.to_string();
            };
            close(out, expected, query_begin, query_end);
            close(q.grad(), plain_query.grad(), query_begin, query_end);
            close(k.grad(), plain_key.grad(), key_begin, key_end);
            close(v.grad(), plain_value.grad(), key_begin, key_end);
          },
          kOptions);
    }
  }
}

}  // namespace
}  // namespace pardiff
