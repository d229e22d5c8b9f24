#include <pardiff/core/check.h>
#include <pardiff/parallel/layout.h>

#include <algorithm>
#include <cmath>

#include "plan/layouts.h"

namespace pardiff::plan {
namespace {

// What a profile's code does beside products, attention and transfers. Bytes are per element of one [B, S, d] tensor,
// `e` being the bytes of a value; docs/planner.md derives them from the algorithms.
struct Habits {
  int exchanges_before_attention;  // all-to-alls for query, key and value
  bool rotates;
  double merge_first, merge, merge_last;      // partial results of a ring: the cast of each, each addition, the result
  double passes_double[2], passes_single[2];  // reads and writes of d: on every tp rank, and shared among them
  int reduces_double;                         // all-reduces of a double block under tp
  // Operations that the host launches.
  double launches_double, launches_single, launches_ulysses, launches_ring, launches_block, launches_merge;
};

Habits habits_of(Profile profile, double e) {
  if (profile == Profile::kPardiff) {
    return {.exchanges_before_attention = 1,
            .rotates = true,
            .merge_first = e + 4,
            .merge = 28,
            .merge_last = e + 4,
            .passes_double = {10, 16},
            .passes_single = {5, 18},
            .reduces_double = 2,
            .launches_double = 40,
            .launches_single = 20,
            .launches_ulysses = 12,
            .launches_ring = 4,
            .launches_block = 6,
            .launches_merge = 14};
  }
  return {.exchanges_before_attention = 3,
          .rotates = false,
          .merge_first = e + 4,
          .merge = 32,
          .merge_last = e + 4,
          .passes_double = {22, 70},
          .passes_single = {13, 74},
          .reduces_double = 4,
          .launches_double = 100,
          .launches_single = 55,
          .launches_ulysses = 24,
          .launches_ring = 9,
          .launches_block = 6,
          .launches_merge = 8};
}

// One forward pass on the rank with the largest share.
class Pass {
 public:
  Pass(const Work& work, const ParallelConfig& config, const Machine& machine, int ranks, Profile profile)
      : work_(work),
        machine_(machine),
        ranks_(ranks),
        e_(static_cast<double>(c10::elementSize(work.dtype))),
        habits_(habits_of(profile, e_)),
        sharing_weights_(static_cast<int>(config.mesh(0, ranks).ranks_along(config.weight_axes()).size())),
        weight_mesh_(config.mesh(0, ranks)),
        weight_axes_(config.weight_axes()),
        run_(as_run(work, config)),
        mesh_(run_.mesh(0, ranks)) {
    ring_ = mesh_.size("ring");
    ulysses_ = mesh_.size("ulysses");
    tp_ = mesh_.size("tp");
    const int groups = run_.dp_degree * run_.fsdp_degree;
    batch_ = static_cast<double>((work.pictures + groups - 1) / groups);
    const auto context = run_.context_parallel_config;
    gathers_ring_ = !habits_.rotates || (context && context->rotate_method == "allgather");
    image_ = static_cast<double>(SequenceLayout::split(work.image_tokens(), ring_ * ulysses_).local_length(0));
    text_ = static_cast<double>(SequenceLayout::split(work.text_tokens, ring_ * ulysses_).local_length(0));
    const int64_t heads = work.transformer.num_attention_heads / tp_;
    heads_ = static_cast<double>(even_share(heads, ulysses_, 0).length);
  }

  StepTime time() const {
    StepTime step;
    const double attention = attention_time();
    const double in_double = double_products() + attention, in_single = single_products() + attention;
    step.compute = doubles() * in_double + singles() * in_single + outer_products();
    step.exchange = layers() * (ulysses_time() + ring_time(attention)) + tensor_parallel_time();
    step.exchange += weight_time(in_double, in_single);
    const double host = machine_.launch_s * launches();
    if (machine_.asynchronous) {
      step.host = std::max(0.0, host - step.compute - step.exchange);
    } else {
      step.compute += host;
    }
    return step;
  }

  // The two groups of cfg exchange their predictions once a step.
  double between_passes() const {
    if (run_.cfg_degree == 1) return 0;
    return transfer("all_gather", {"cfg"}, batch_ * image_ * out_channels() * e_);
  }

 private:
  double dim() const { return static_cast<double>(work_.transformer.inner_dim()); }
  double doubles() const { return static_cast<double>(work_.transformer.num_layers); }
  double singles() const { return static_cast<double>(work_.transformer.num_single_layers); }
  double layers() const { return doubles() + singles(); }
  double out_channels() const {
    const auto& config = work_.transformer;
    return static_cast<double>(config.patch_size * config.patch_size *
                               config.out_channels.value_or(config.in_channels));
  }
  double rows() const { return image_ + text_; }
  double tokens() const { return static_cast<double>(work_.image_tokens() + work_.text_tokens); }
  // Elements of one of query, key, value, output on this rank.
  double local_elements() const { return batch_ * rows() * dim() / tp_; }

  double memory_time(double bytes) const { return bytes / machine_.memory_bytes_per_s; }
  double passes_time(double bytes) const {
    return machine_.pass_bytes_per_s > 0 ? bytes / machine_.pass_bytes_per_s : 0;
  }
  double moved(double bytes) const {
    return bytes / (machine_.pass_bytes_per_s > 0 ? machine_.pass_bytes_per_s : machine_.memory_bytes_per_s);
  }

  // As fast as it can compute, and no faster than the weights can be read.
  double product(double count, double in, double out) const {
    const double flops = 2 * count * in * out;
    return std::max(flops / (machine_.flops(work_.dtype) * machine_.efficiency), memory_time(in * out * e_));
  }
  double tiled(double count) const {
    const auto tile = static_cast<double>(machine_.row_tile);
    return std::ceil(count / tile) * tile;
  }

  // The linear layers of a token: query, key, value and output, and the feed-forward.
  double stream_products(double count) const {
    if (count == 0) return 0;
    const double n = tiled(batch_ * count), d = dim(), own = d / tp_;
    return 3 * product(n, d, own) + product(n, own, d) + product(n, d, 4 * own) + product(n, 4 * own, d);
  }
  double double_products() const {
    const double bytes = batch_ * rows() * dim() * e_;
    return stream_products(image_) + stream_products(text_) + product(batch_, dim(), 12 * dim() / tp_) +
           passes_time(bytes * (habits_.passes_double[0] + habits_.passes_double[1] / tp_));
  }
  double single_products() const {
    const double n = tiled(batch_ * rows()), d = dim(), own = d / tp_;
    const double bytes = batch_ * rows() * d * e_;
    return 3 * product(n, d, own) + product(n, d, 4 * own) + product(n, 5 * own, d) + product(batch_, d, 3 * own) +
           passes_time(bytes * (habits_.passes_single[0] + habits_.passes_single[1] / tp_));
  }
  double outer_products() const {
    const auto& config = work_.transformer;
    return product(batch_ * image_, static_cast<double>(config.in_channels), dim()) +
           product(batch_ * text_, static_cast<double>(config.joint_attention_dim), dim()) +
           product(batch_ * image_, dim(), out_channels()) + product(batch_, dim(), 2 * dim());
  }
  double attention_time() const {
    const double flops =
        4 * batch_ * rows() * ulysses_ * tokens() * heads_ * static_cast<double>(work_.transformer.attention_head_dim);
    return flops / (machine_.flops(work_.dtype) * machine_.attention_efficiency);
  }

  const Link& link(const std::string& operation, int extent) const {
    if (ranks_ > machine_.ranks_per_host && extent > machine_.ranks_per_host) return machine_.network;
    const auto own = machine_.operations.find(operation);
    return own == machine_.operations.end() ? machine_.link : own->second;
  }
  // Ranks from the first to the last of a group.
  static int extent(const Mesh& mesh, const std::vector<std::string>& axes) {
    return mesh.ranks_along(axes, 0).back() + 1;
  }
  double transfer(const std::string& operation, const std::vector<std::string>& axes, double bytes) const {
    const auto& used = link(operation, extent(mesh_, axes));
    return used.latency_s + bytes / used.bytes_per_s;
  }

  // Everything waits for it: query, key and value before the attention, its output after it.
  double ulysses_time() const {
    if (ulysses_ == 1) return 0;
    const double sent = local_elements() * e_ * (ulysses_ - 1) / ulysses_;
    const int before = habits_.exchanges_before_attention;
    return before * transfer("all_to_all", {"ulysses"}, 3 * sent / before) + transfer("all_to_all", {"ulysses"}, sent) +
           moved(4 * 4 * e_ * local_elements());
  }
  double ring_time(double attention) const {
    if (ring_ == 1) return 0;
    const double block = 2 * local_elements() * e_;  // one rank's keys and values
    const double merging =
        local_elements() * (ring_ * habits_.merge_first + (ring_ - 1) * habits_.merge + habits_.merge_last);
    const double packing = 2 * block;
    if (gathers_ring_) return transfer("all_gather", {"ring"}, block * (ring_ - 1)) + moved(merging + packing);
    const double hop = transfer("send", {"ring"}, block), hidden = std::min(hop, attention / ring_);
    return (ring_ - 1) * (hop - machine_.overlap * hidden) + moved(merging + packing);
  }
  double tensor_parallel_time() const {
    if (tp_ == 1) return 0;
    const double bytes = batch_ * rows() * dim() * e_, share = 2.0 * (tp_ - 1) / tp_;
    const int count = habits_.reduces_double;
    // The modulations of all blocks come together once.
    const double modulations = batch_ * (12 * doubles() + 3 * singles() + 2) * dim() * e_ / tp_ * (tp_ - 1);
    return doubles() * count * transfer("all_reduce", {"tp"}, 2 * bytes / count * share) +
           singles() * transfer("all_reduce", {"tp"}, bytes * share) + transfer("all_gather", {"tp"}, modulations);
  }
  // A block's weights arrive while the block before it computes.
  double weight_time(double in_double, double in_single) const {
    if (sharing_weights_ == 1) return 0;
    const auto& used = link("all_gather", extent(weight_mesh_, weight_axes_));
    const double d = dim(), part = e_ / tp_ * (sharing_weights_ - 1) / sharing_weights_;
    const auto exposed = [&](double elements, double computing) {
      const double arriving = used.latency_s + elements * part / used.bytes_per_s;
      return arriving - machine_.overlap * std::min(arriving, computing);
    };
    return doubles() * exposed(36 * d * d, in_double) + singles() * exposed(15 * d * d, in_single);
  }

  double launches() const {
    double count = doubles() * habits_.launches_double + singles() * habits_.launches_single;
    if (ulysses_ > 1) count += layers() * habits_.launches_ulysses;
    if (ring_ > 1) {
      count +=
          layers() * (habits_.launches_ring + ring_ * habits_.launches_block + (ring_ - 1) * habits_.launches_merge);
    }
    return count;
  }

  const Work& work_;
  const Machine& machine_;
  int ranks_;
  double e_;
  Habits habits_;
  int sharing_weights_;
  Mesh weight_mesh_;
  std::vector<std::string> weight_axes_;
  ParallelConfig run_;
  Mesh mesh_;
  int ring_ = 1, ulysses_ = 1, tp_ = 1;
  bool gathers_ring_ = false;
  double batch_ = 1, image_ = 0, text_ = 0, heads_ = 0;
};

// A value in [low, high] for which the decreasing `time` takes `seconds`; negative if there is none.
template <typename Time>
double solved(double low, double high, double seconds, const Time& time) {
  if (time(low) < seconds || time(high) > seconds) return -1;
  for (int i = 0; i < 200; ++i) {
    const double middle = std::sqrt(low * high);
    (time(middle) > seconds ? low : high) = middle;
  }
  return low;
}

}  // namespace

StepTime checked_step_time(const Work& work, const ParallelConfig& config, const Machine& machine, int ranks,
                           Profile profile) {
  const Pass pass(work, config, machine, ranks, profile);
  auto step = pass.time();
  const bool runs_both = work.true_guidance && config.cfg_degree == 1;
  if (runs_both) step = {2 * step.compute, 2 * step.exchange, 2 * step.host};
  step.exchange += pass.between_passes();
  return step;
}

StepTime step_time(const Work& work, const ParallelConfig& config, const Machine& machine, int ranks, Profile profile) {
  const auto refusal = why_refused(work, config, ranks, profile);
  check<ConfigError>(refusal.empty(), refusal);
  return checked_step_time(work, config, machine, ranks, profile);
}

Machine fitted(Machine machine, const Work& work, const ParallelConfig& config, int ranks, double seconds,
               Profile profile) {
  constexpr double kWorstLink = 0.25, kBestLink = 2;  // of the rate in the table
  const auto refusal = why_refused(work, config, ranks, profile);
  check<ConfigError>(refusal.empty(), refusal);
  auto trial = machine;
  const double rate = solved(kWorstLink * machine.link.bytes_per_s, kBestLink * machine.link.bytes_per_s, seconds,
                             [&](double candidate) {
                               trial.link.bytes_per_s = candidate;
                               return checked_step_time(work, config, trial, ranks, profile).total();
                             });
  if (rate > 0) {
    machine.link.bytes_per_s = rate;
    return machine;
  }
  trial = machine;
  constexpr double kLeast = 1e-7, kMost = 1e-3;
  const double launches_per_s = solved(1 / kMost, 1 / kLeast, seconds, [&](double candidate) {
    trial.launch_s = 1 / candidate;
    return checked_step_time(work, config, trial, ranks, profile).total();
  });
  check<ConfigError>(launches_per_s > 0, "neither the link nor the host of ", machine.name, " explains ", seconds,
                     " s a step of ", description(config), ". Check its peak rate and efficiency.");
  machine.launch_s = 1 / launches_per_s;
  return machine;
}

}  // namespace pardiff::plan
