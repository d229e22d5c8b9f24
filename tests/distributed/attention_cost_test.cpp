// What the modes send, hold and do in which order.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/attention/backend.h>
#include <pardiff/core/check.h>

#include <mutex>

#include "attention/modes/call.h"
#include "attention/modes/ring.h"
#include "comm/backends/backend.h"
#include "support/attention_problem.h"
#include "support/plain_attention.h"

namespace pardiff {
namespace {

using testing::AttentionProblem;
using testing::AttentionWay;
using testing::MaskKind;
using testing::share_of;
using testing::SolvedProblem;

const WorldOptions kOptions{.device = "cpu", .timeout_s = 60};
constexpr int kRankCounts[] = {1, 2, 3, 4, 6};

struct Traffic {
  int64_t calls = 0, bytes = 0;
  bool operator==(const Traffic&) const = default;
};
std::ostream& operator<<(std::ostream& stream, const Traffic& traffic) {
  return stream << traffic.calls << " calls, " << traffic.bytes << " bytes";
}
using Totals = std::map<std::string, Traffic>;

// The formulas, worked out from lengths and heads alone. Everything is a number of [batch, head_dim] slabs.
class Formula {
 public:
  Formula(const AttentionProblem& problem, const AttentionWay& way) : problem_(problem), way_(way) {}

  Totals forward() const {
    Totals totals;
    add_all_to_all(totals, exchanged(true), 1);   // Q, K and V in one
    add_all_to_all(totals, exchanged(false), 1);  // O
    add_blocks(totals);
    return totals;
  }

  Totals backward() const {
    Totals totals;
    add_all_to_all(totals, exchanged(false), 1);  // dO
    add_all_to_all(totals, exchanged(true), 1);   // dQ, dK and dV in one
    add_blocks(totals);
    if (way_.ring == 1) return totals;
    // dK and dV in the accumulators' dtype, the blocks' hops and one more.
    const int64_t size = accumulator_size();
    for (int u = 0; u < way_.ulysses; ++u) {
      for (int r = 0; r < way_.ring; ++r) add_send(totals, 2 * ring_tokens(r) * key_heads(u) * size, way_.ring);
    }
    return totals;
  }

 private:
  int64_t element_size() const { return static_cast<int64_t>(c10::elementSize(problem_.dtype)); }
  int64_t accumulator_size() const {
    return way_.convert_to_fp32 ? std::max<int64_t>(4, element_size()) : element_size();
  }
  int64_t slab() const { return problem_.batch * problem_.head_dim; }

  int64_t tokens(int r, int u) const {
    const auto of = [&](int64_t count) {
      const auto [begin, end] = share_of(count, way_.ranks(), r * way_.ulysses + u);
      return end - begin;
    };
    return of(problem_.text) + of(problem_.image);
  }
  int64_t ring_tokens(int r) const {
    int64_t sum = 0;
    for (int u = 0; u < way_.ulysses; ++u) sum += tokens(r, u);
    return sum;
  }
  int64_t query_heads(int u) const {
    const auto [begin, end] = share_of(problem_.heads, way_.ulysses, u);
    return end - begin;
  }
  int64_t key_heads(int u) const {
    const auto [begin, end] = share_of(problem_.heads, way_.ulysses, u);
    const int64_t group = problem_.heads / problem_.key_heads;
    return begin == end ? 0 : (end - 1) / group - begin / group + 1;
  }

  // Slabs that all ranks send to others in one exchange: each rank's tokens, times the heads of its peers.
  int64_t exchanged(bool with_keys) const {
    int64_t sum = 0;
    for (int r = 0; r < way_.ring; ++r) {
      for (int from = 0; from < way_.ulysses; ++from) {
        for (int to = 0; to < way_.ulysses; ++to) {
          if (from != to) sum += tokens(r, from) * (query_heads(to) + (with_keys ? 2 * key_heads(to) : 0));
        }
      }
    }
    return sum;
  }

  void add_all_to_all(Totals& totals, int64_t slabs, int64_t calls) const {
    if (way_.ulysses == 1) return;
    totals["all_to_all"].calls += calls * way_.ranks();
    totals["all_to_all"].bytes += slabs * slab() * element_size();
  }

  // `slabs_bytes` already includes the element's size; an empty message is none.
  void add_send(Totals& totals, int64_t slab_bytes, int64_t times) const {
    if (slab_bytes == 0) return;
    totals["send"].calls += times;
    totals["send"].bytes += times * slab_bytes * slab();
  }

  void add_blocks(Totals& totals) const {
    if (way_.ring == 1) return;
    for (int u = 0; u < way_.ulysses; ++u) {
      for (int r = 0; r < way_.ring; ++r) {
        const int64_t block = 2 * ring_tokens(r) * key_heads(u) * element_size();
        if (way_.rotate) {
          add_send(totals, block, way_.ring - 1);
        } else {
          totals["all_gather"].calls += 1;
          totals["all_gather"].bytes += (way_.ring - 1) * block * slab();
        }
      }
    }
  }

  AttentionProblem problem_;
  AttentionWay way_;
};

struct Measured {
  Totals forward, backward;
};

void add(Totals& totals, const std::map<std::string, OperationCount>& counts) {
  for (const auto& [name, count] : counts) {
    totals[name].calls += count.calls;
    totals[name].bytes += count.bytes_sent;
  }
}

// Sums over the ranks, one entry per way.
std::vector<Measured> measure(const AttentionProblem& problem, const std::vector<AttentionWay>& ways) {
  std::vector<Measured> measured(ways.size());
  if (ways.empty()) return measured;
  std::mutex mutex;
  const auto solved = testing::solve(problem);
  run_as_threads(
      ways[0].ranks(),
      [&](World& world) {
        const auto leaf = [&](const at::Tensor& whole) {
          return testing::joint_share(whole, problem, world.size(), world.rank()).detach().requires_grad_();
        };
        const auto layout = testing::joint_layout(problem, world.size());
        for (size_t w = 0; w < ways.size(); ++w) {
          const auto query = leaf(solved.query), key = leaf(solved.key), value = leaf(solved.value);
          Attention attention;
          attention->set_backend(ways[w].backend);
          attention->share(testing::share_attention(world, ways[w]));
          const auto start = world.counter().counts();
          const auto out = attention->forward(query, key, value,
                                              {.query_layout = layout,
                                               .key_layout = layout,
                                               .mask = solved.mask,
                                               .is_causal = problem.mask == MaskKind::kCausal});
          const auto middle = world.counter().counts();
          out.sum().backward();
          const auto end = world.counter().counts();
          const std::lock_guard lock(mutex);
          add(measured[w].forward, difference(middle, start));
          add(measured[w].backward, difference(end, middle));
        }
      },
      kOptions);
  return measured;
}

// Every way that accepts the problem, with one backend: what is sent does not depend on it.
std::vector<AttentionWay> ways_for(const AttentionProblem& problem, int ranks) {
  std::vector<AttentionWay> ways;
  for (const auto& way : testing::attention_ways(ranks)) {
    if (way.accepts(problem) && way.backend == "native") ways.push_back(way);
  }
  return ways;
}

class AttentionTraffic : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AttentionTraffic, ::testing::ValuesIn(kRankCounts),
                         ::testing::PrintToStringParamName());

TEST_P(AttentionTraffic, IsExactlyTheFormulaInEveryMode) {
  const AttentionProblem problems[] = {
      {.image = 12, .text = 12, .heads = 12, .key_heads = 12, .batch = 2, .dtype = at::kFloat},  // even for all layouts
      {.image = 12, .text = 0, .heads = 12, .key_heads = 3, .dtype = at::kBFloat16},
      {.image = 7, .text = 5, .heads = 4, .key_heads = 4, .batch = 2},  // uneven, and ranks without heads at 6
      {.image = 1, .text = 2, .heads = 8, .key_heads = 2},              // ranks without tokens
      {.image = 11, .text = 3, .heads = 1, .key_heads = 1},             // ranks without heads
      // A mask is whole on every rank, and a block that no query may see moves all the same.
      {.image = 7, .text = 5, .heads = 6, .key_heads = 3, .mask = MaskKind::kCausal},
      {.image = 9, .text = 2, .heads = 3, .key_heads = 3, .mask = MaskKind::kKeyPadding},
  };
  for (const auto& problem : problems) {
    auto ways = ways_for(problem, GetParam());
    ASSERT_FALSE(ways.empty());
    for (const bool convert : {true, false}) {
      for (auto& way : ways) way.convert_to_fp32 = convert;
      const auto measured = measure(problem, ways);
      for (size_t w = 0; w < ways.size(); ++w) {
        const Formula formula(problem, ways[w]);
        const auto what = problem.to_string() + "; " + ways[w].to_string();
        EXPECT_EQ(measured[w].forward, formula.forward()) << what;
        EXPECT_EQ(measured[w].backward, formula.backward()) << what;
      }
    }
  }
}

// The closed formulas of the documentation, for even shares: V is the bytes of one whole Q, K, V or O.
TEST(AttentionTraffic, IsTheDocumentationsFormulaForEvenShares) {
  const AttentionProblem problem{
      .image = 12, .text = 24, .heads = 12, .key_heads = 12, .batch = 2, .dtype = at::kFloat};
  const double whole = 36.0 * 12 * 2 * 8 * 4;
  for (const int ranks : {2, 3, 4, 6}) {
    const auto ways = ways_for(problem, ranks);
    const auto measured = measure(problem, ways);
    for (size_t w = 0; w < ways.size(); ++w) {
      const auto& way = ways[w];
      const double n = ranks, r = way.ring, u = way.ulysses;
      int64_t bytes = 0;
      for (const auto& [name, traffic] : measured[w].forward) bytes += traffic.bytes;
      const double expected = whole / n * (4 * (u - 1) / u + 2 * (r - 1));
      if (u == 1) {
        EXPECT_NEAR(expected, 2 * whole * (n - 1) / n, 1e-6);
      } else if (r == 1) {
        EXPECT_NEAR(expected, 4 * whole * (n - 1) / (n * n), 1e-6);
      }
      EXPECT_NEAR(static_cast<double>(bytes) / n, expected, 0.5) << way.to_string();
    }
  }
}

TEST(AttentionTraffic, IsNothingForWholeKeysInEveryMode) {
  for (const int ranks : {2, 4}) {
    for (const auto& way : testing::attention_ways(ranks)) {
      if (!way.mode->any_length) continue;
      const auto query = testing::random_normal({2, 12, 4, 8}, 1), key = testing::random_normal({2, 5, 2, 8}, 2),
                 value = testing::random_normal({2, 5, 2, 8}, 3);
      const auto expected = testing::plain_attention(query, key, value);
      run_as_threads(
          ranks,
          [&](World& world) {
            Attention attention;
            attention->set_backend(way.backend);
            attention->share(testing::share_attention(world, way));
            const auto [begin, end] = share_of(12, ranks, world.rank());
            const auto local = query.slice(1, begin, end).detach().requires_grad_();
            const auto before = world.counter().counts();
            const auto out = attention->forward(local, key, value, {.query_layout = SequenceLayout::split(12, ranks)});
            out.sum().backward();
            EXPECT_TRUE(difference(world.counter().counts(), before).empty()) << way.to_string();
            EXPECT_LE((out - expected.slice(1, begin, end)).abs().max().item<double>(), 1e-12);
          },
          kOptions);
    }
  }
}

int64_t block_bytes(const AttentionProblem& problem, int ring_rank, int ring) {
  const auto [text_begin, text_end] = share_of(problem.text, ring, ring_rank);
  const auto [image_begin, image_end] = share_of(problem.image, ring, ring_rank);
  return 2 * (text_end - text_begin + image_end - image_begin) * problem.batch * problem.key_heads * problem.head_dim *
         8;
}

TEST(RingAttention, HoldsAtMostTwoRemoteBlocksWhenRotatingAndAllOfThemOtherwise) {
  const AttentionProblem problem{.image = 13, .text = 6, .heads = 2, .key_heads = 2};
  const auto solved = testing::solve(problem);
  for (const int ring : {2, 3, 4, 6}) {
    for (const auto& way : testing::attention_ways(ring)) {
      if (way.mode->name != "ring_anything") continue;
      run_as_threads(
          ring,
          [&](World& world) {
            const auto sharing = testing::share_attention(world, way);
            Attention attention;
            attention->share(sharing);
            const auto layout = testing::joint_layout(problem, ring);
            const auto leaf = [&](const at::Tensor& whole) {
              return testing::joint_share(whole, problem, ring, world.rank()).detach().requires_grad_();
            };
            const auto query = leaf(solved.query), key = leaf(solved.key), value = leaf(solved.value);
            int64_t largest = 0, all = 0;
            for (int other = 0; other < ring; ++other) {
              if (other == world.rank()) continue;
              largest = std::max(largest, block_bytes(problem, other, ring));
              all += block_bytes(problem, other, ring);
            }
            // Several calls, forward and backward: what one has held is given back before the next.
            for (int call = 0; call < 2; ++call) {
              attention->forward(query, key, value, {.query_layout = layout, .key_layout = layout}).sum().backward();
            }
            const int64_t expected = way.rotate ? std::min(2, ring - 1) * largest : all;
            EXPECT_EQ(sharing->meter->peak_bytes(), expected) << way.to_string();
          },
          kOptions);
    }
  }
}

// Writes down what happens, passing everything on.
class Journal {
 public:
  void write(const std::string& event) { events_.push_back(event); }
  const std::vector<std::string>& events() const { return events_; }
  size_t index_of(const std::string& event) const {
    return std::find(events_.begin(), events_.end(), event) - events_.begin();
  }

 private:
  std::vector<std::string> events_;
};

class WrittenGroup : public comm::GroupBackend {
 public:
  WrittenGroup(const ProcessGroup& group, Journal& journal)
      : GroupBackend(group.rank(), group.size()), group_(group), journal_(journal) {}

  std::string transport() const override { return "written"; }
  Pending all_to_all(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_counts,
                     const std::vector<int64_t>& input_counts) override {
    return group_.backend().all_to_all(output, input, output_counts, input_counts);
  }
  Pending all_gather(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& counts) override {
    return group_.backend().all_gather(output, input, counts);
  }
  Pending all_reduce(const at::Tensor& tensor) override { return group_.backend().all_reduce(tensor); }
  Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& counts) override {
    return group_.backend().reduce_scatter(output, input, counts);
  }
  Pending broadcast(const at::Tensor& tensor, int root) override { return group_.backend().broadcast(tensor, root); }
  void barrier() override { group_.backend().barrier(); }

  Pending hop(const at::Tensor& sent, int to, const at::Tensor& received, int from) override {
    const int number = hops_++;
    journal_.write(text_of("post ", number));
    receiving_.push_back(received.data_ptr());
    sending_.push_back(sent.data_ptr());
    auto inner = std::make_shared<Pending>(group_.backend().hop(sent, to, received, from));
    return Pending([this, number, inner, sent = sent.storage().getWeakStorageImpl(),
                    received = received.storage().getWeakStorageImpl()] {
      EXPECT_FALSE(sent.expired()) << "hop " << number;
      EXPECT_FALSE(received.expired()) << "hop " << number;
      inner->wait();
      journal_.write(text_of("done ", number));
    });
  }

  const std::vector<void*>& receiving() const { return receiving_; }
  const std::vector<void*>& sending() const { return sending_; }

 private:
  ProcessGroup group_;
  Journal& journal_;
  int hops_ = 0;
  std::vector<void*> receiving_, sending_;
};

class WrittenAttention : public AttentionBackend {
 public:
  explicit WrittenAttention(Journal& journal) : journal_(journal) {}
  std::string name() const override { return "written"; }
  std::string description() const override { return name(); }
  std::string why_not(const KernelNeeds&) const override { return ""; }
  KernelOutput forward(const KernelInputs& inputs) const override {
    journal_.write(text_of("attend ", calls_++));
    keys_.push_back(inputs.key.data_ptr());
    return attention_backend("math").forward(inputs);
  }
  KernelGradients backward(const at::Tensor& grad_out, const KernelInputs& inputs,
                           const KernelOutput& final) const override {
    journal_.write(text_of("differentiate ", derivatives_++));
    return attention_backend("math").backward(grad_out, inputs, final);
  }
  const std::vector<void*>& keys() const { return keys_; }

 private:
  Journal& journal_;
  mutable int calls_ = 0, derivatives_ = 0;
  mutable std::vector<void*> keys_;
};

struct RingRun {
  Journal journal;
  std::shared_ptr<WrittenGroup> group;
  std::unique_ptr<WrittenAttention> backend;
  attention::Call call;
  at::Tensor query, key, value;
};

void prepare(RingRun& run, World& world) {
  const int ranks = world.size();
  run.group = std::make_shared<WrittenGroup>(world.group(), run.journal);
  run.backend = std::make_unique<WrittenAttention>(run.journal);
  AttentionSharing sharing;
  sharing.mode = &attention_mode({.ring_degree = ranks});
  sharing.ring = ProcessGroup("written", run.group, nullptr);
  const auto rank = static_cast<uint64_t>(world.rank());
  run.query = testing::random_normal({1, 3, 2, 4}, 10 + rank);
  run.key = testing::random_normal({1, 3, 2, 4}, 20 + rank);
  run.value = testing::random_normal({1, 3, 2, 4}, 30 + rank);
  const auto layout = SequenceLayout::split(3 * ranks, ranks);
  run.call = attention::plan_call(&sharing, *run.backend, run.query, run.key, run.value,
                                  {.query_layout = layout, .key_layout = layout});
}

TEST(RotatingRing, PostsTheNextTransferBeforeItAttendsAndWaitsAfterwards) {
  for (const int ranks : {2, 3, 4, 6}) {
    run_as_threads(
        ranks,
        [&](World& world) {
          RingRun run;
          prepare(run, world);
          attention::ring_forward(run.call, run.query, run.key, run.value);
          std::vector<std::string> expected;
          for (int t = 0; t < ranks; ++t) {
            if (t > 0) expected.push_back(text_of("done ", t - 1));
            if (t + 1 < ranks) expected.push_back(text_of("post ", t));
            expected.push_back(text_of("attend ", t));
          }
          EXPECT_EQ(run.journal.events(), expected) << ranks;
        },
        kOptions);
  }
}

TEST(RotatingRing, ReceivesIntoTwoFixedBuffersAndNeverIntoTheOneInUse) {
  run_as_threads(
      6,
      [](World& world) {
        RingRun run;
        prepare(run, world);
        attention::ring_forward(run.call, run.query, run.key, run.value);
        const auto& receiving = run.group->receiving();
        ASSERT_EQ(receiving.size(), 5u);
        for (size_t t = 0; t < receiving.size(); ++t) {
          EXPECT_EQ(receiving[t], receiving[t % 2]);
          EXPECT_NE(receiving[t], run.group->sending()[t]);  // what is sent meanwhile
          EXPECT_NE(receiving[t], run.backend->keys()[t]);   // what is read meanwhile
          EXPECT_EQ(receiving[t], run.backend->keys()[t + 1]);
        }
        EXPECT_NE(receiving[0], receiving[1]);
      },
      kOptions);
}

// Block t + 1 and the gradient of block t - 1 both travel while block t is differentiated; then the gradients meet.
TEST(RotatingRing, HasABlockAndAGradientTravelWhileItDifferentiates) {
  for (const int ranks : {2, 3, 4, 6}) {
    run_as_threads(
        ranks,
        [&](World& world) {
          RingRun run;
          prepare(run, world);
          const auto result = attention::ring_forward(run.call, run.query, run.key, run.value);
          const auto before = static_cast<int64_t>(run.journal.events().size());
          attention::ring_backward(run.call, at::ones_like(result.out), run.query, run.key, run.value, result);

          int hops = ranks - 1, block = 0, gradient = 0;  // the numbers of hops, and of the two in flight
          std::vector<std::string> expected;
          const auto post = [&](int& number) { expected.push_back(text_of("post ", number = hops++)); };
          const auto done = [&](int number) { expected.push_back(text_of("done ", number)); };
          for (int t = 0; t < ranks; ++t) {
            if (t > 0) done(block);
            if (t + 1 < ranks) post(block);
            expected.push_back(text_of("differentiate ", t));
            if (t > 0) done(gradient);
            post(gradient);
          }
          done(gradient);
          const auto& events = run.journal.events();
          EXPECT_EQ(std::vector<std::string>(events.begin() + before, events.end()), expected) << ranks;
        },
        kOptions);
  }
}

}  // namespace
}  // namespace pardiff
