#include <ATen/ATen.h>
#include <pardiff/attention/backend.h>
#include <pardiff/core/check.h>
#include <pardiff/core/device.h>
#include <pardiff/nn/modulation.h>
#include <pardiff/plan/calibrate.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

namespace pardiff::plan {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr int kRounds = 5;              // of which the median counts
constexpr double kRoundSeconds = 8e-3;  // so many calls a round that it takes about as long
constexpr double kLeast = 1e-9;         // seconds that a measurement counts as at least

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2, values.end());
  return values[values.size() / 2];
}

double host_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// Of the current GPU; the runtime is there where the CUDA part is.
double device_memory() {
  size_t free = 0, total = 0;
  const auto ask = reinterpret_cast<int (*)(size_t*, size_t*)>(cuda_function("cudaMemGetInfo"));
  check<ConfigError>(ask && ask(&free, &total) == 0,
                     "the memory of the GPU cannot be asked for. Give its kind in a file.");
  return static_cast<double>(total);
}

// Times on the slowest rank, while all ranks do the same.
class Watch {
 public:
  explicit Watch(World& world) : world_(world) {}

  // Seconds that one call of `work` takes.
  template <typename Call>
  double time(const Call& work) {
    run(work, 1);  // whatever happens only once
    const double first = slowest(run(work, 2) / 2);
    const int calls = std::clamp(static_cast<int>(kRoundSeconds / std::max(first, kLeast)), 1, 2000);
    std::vector<double> rounds;
    for (int i = 0; i < kRounds; ++i) rounds.push_back(run(work, calls) / calls);
    return std::max(slowest(median(rounds)), kLeast);
  }

 private:
  template <typename Call>
  double run(const Call& work, int calls) {
    barrier(world_.host_group());
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) work(i);
    finish();
    return seconds_since(start);
  }

  // The number of calls must be equal on all ranks, for they may communicate.
  double slowest(double seconds) {
    double most = seconds;
    for (const auto& text : world_.texts_of_all(Json(seconds).dump())) {
      most = std::max(most, Json::parse(text).get<double>());
    }
    return most;
  }

  void finish() {
    if (world_.device().is_cuda()) at::zeros({1}, world_.device()).item();  // its kernels run on behind the host
  }

  World& world_;
};

class Calibration {
 public:
  Calibration(const Work& work, World& world)
      : world_(world),
        watch_(world),
        options_(at::TensorOptions().dtype(work.dtype).device(world.device())),
        dim_(work.transformer.inner_dim()),
        head_dim_(work.transformer.attention_head_dim),
        heads_(std::max<int64_t>(1, work.transformer.num_attention_heads / world.size())),
        tokens_(std::min<int64_t>(work.image_tokens() + work.text_tokens, kMostTokens)),
        rows_(std::max<int64_t>(1, tokens_ / world.size())),
        e_(static_cast<double>(c10::elementSize(work.dtype))) {}

  Machine result() {
    const at::NoGradGuard no_grad;
    Machine machine{.name = "measured", .row_tile = 1, .ranks_per_host = world_.local_size()};
    machine.description = text_for_people();
    machine.asynchronous = world_.device().is_cuda();
    machine.launch_s = launch();
    machine.memory_bytes = machine.asynchronous ? device_memory() : host_memory();
    machine.memory_is_shared = !machine.asynchronous;
    const double own = machine.asynchronous ? 0 : machine.launch_s;  // is priced for itself
    machine.half_flops = machine.single_flops = products(own);
    machine.attention_efficiency = attention(own) / machine.half_flops;
    machine.memory_bytes_per_s = weight_reading(own);
    machine.pass_bytes_per_s = passes(own);
    machine.link = machine.network = {.bytes_per_s = 1e12, .latency_s = 0};  // one rank has none
    if (world_.size() > 1) transfers(machine);
    return machine;
  }

 private:
  static constexpr int64_t kMostTokens = 2048;  // more of them take longer to measure and say the same
  static constexpr double kWeightBytes = 64e6;  // of which products take turns, as in a model: too many for a cache
  static constexpr int64_t kMostWeights = 64;
  static constexpr int64_t kLeastShare = 16384, kMostPart = int64_t{1} << 20;  // elements

  std::string text_for_people() const {
    return std::to_string(world_.size()) + " ranks on " + world_.device().str() + " with " +
           std::to_string(world_.threads()) + " threads each, " + world_.group().transport();
  }

  double launch() {
    const auto x = at::ones({16}, options_);
    return watch_.time([&](int) { at::add(x, x); });
  }

  std::vector<at::Tensor> weights(int64_t out) const {
    const double bytes = static_cast<double>(out * dim_) * e_;
    const auto count = std::clamp(static_cast<int64_t>(kWeightBytes / bytes), int64_t{1}, kMostWeights);
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(at::full({out, dim_}, 0.01, options_));
    return all;
  }

  // One rank's rows of a feed-forward's first layer; bytes and operations a second.
  double products(double own) {
    const auto x = at::full({rows_, dim_}, 0.5, options_);
    const auto matrices = weights(4 * dim_);
    const double seconds =
        watch_.time([&](int i) { at::linear(x, matrices[static_cast<size_t>(i) % matrices.size()]); });
    return 8.0 * static_cast<double>(rows_ * dim_ * dim_) / positive(seconds - own);
  }

  double weight_reading(double own) {
    const auto x = at::full({1, dim_}, 0.5, options_);
    const auto matrices = weights(3 * dim_);
    const double seconds =
        watch_.time([&](int i) { at::linear(x, matrices[static_cast<size_t>(i) % matrices.size()]); });
    return 3 * e_ * static_cast<double>(dim_ * dim_) / positive(seconds - own);
  }

  KernelInputs attention_inputs() const {
    const auto x = at::full({1, tokens_, heads_, head_dim_}, 0.1, options_);
    return {.query = x, .key = x, .value = x, .mask = {}, .scale = 1 / std::sqrt(static_cast<double>(head_dim_))};
  }

  double attention(double own) {
    const auto inputs = attention_inputs();
    const auto& backend = attention_backend("native");
    const double seconds = watch_.time([&](int) { backend.forward(inputs); });
    return 4.0 * static_cast<double>(tokens_ * tokens_ * heads_ * head_dim_) / positive(seconds - own);
  }

  double passes(double own) {
    const auto x = at::full({1, rows_, dim_}, 0.5, options_), one = at::ones({1, 1, dim_}, options_);
    const double seconds = watch_.time([&](int) { nn::modulated_norm(x, one, one); });
    return 2 * e_ * static_cast<double>(rows_ * dim_) / positive(seconds - own);
  }

  // Latency from a small message, rate from one as large as a layer's.
  template <typename Operation>
  Link link(int64_t large, const Operation& operation) {
    const int64_t small = 16;
    const double latency = watch_.time([&](int) { operation(small); });
    const double seconds = watch_.time([&](int) { operation(large); });
    const double bytes = operation(large) - operation(small);
    return {.bytes_per_s = bytes / positive(seconds - latency), .latency_s = latency};
  }

  void transfers(Machine& machine) {
    const auto& group = world_.group();
    const int ranks = group.size(), next = (group.rank() + 1) % ranks, previous = (group.rank() + ranks - 1) % ranks;
    // As large as a layer's, and large enough to tell a rate from a latency.
    const int64_t share = std::max(rows_ * dim_ / ranks, kLeastShare);
    // Weights travel too, a block at a time.
    const int64_t part = std::clamp(36 * dim_ * dim_ / ranks, 2 * share, std::max(2 * share, kMostPart));
    const auto own = at::zeros({ranks * part}, options_), other = at::zeros({ranks * part}, options_);
    const auto counts = [&](int64_t each) { return std::vector<int64_t>(static_cast<size_t>(ranks), each); };
    // Each returns the payload bytes it sends.
    const auto to_all = [&](int64_t each) {
      all_to_all(other.narrow(0, 0, ranks * each), own.narrow(0, 0, ranks * each), counts(each), counts(each), group)
          .wait();
      return static_cast<double>((ranks - 1) * each) * e_;
    };
    const auto gather = [&](int64_t each) {
      all_gather(other.narrow(0, 0, ranks * each), own.narrow(0, 0, each), counts(each), group).wait();
      return static_cast<double>((ranks - 1) * each) * e_;
    };
    const auto reduce = [&](int64_t each) {
      all_reduce(own.narrow(0, 0, ranks * each), group).wait();
      return 2.0 * static_cast<double>((ranks - 1) * each) * e_;
    };
    const auto step = [&](int64_t each) {
      hop(own.narrow(0, 0, ranks * each), next, other.narrow(0, 0, ranks * each), previous, group).wait();
      return static_cast<double>(ranks * each) * e_;
    };
    machine.operations["all_to_all"] = machine.link = link(2 * share, to_all);
    machine.operations["all_gather"] = link(part, gather);
    machine.operations["all_reduce"] = link(2 * share, reduce);
    machine.operations["send"] = link(2 * share, step);
    machine.network = machine.link;
    const int64_t block = 2 * ranks * share;
    machine.overlap = overlap(own.narrow(0, 0, block), other.narrow(0, 0, block), next, previous);
  }

  // How much of a hop passes beside an attention.
  double overlap(const at::Tensor& own, const at::Tensor& other, int next, int previous) {
    const auto inputs = attention_inputs();
    const auto& backend = attention_backend("native");
    const auto& group = world_.group();
    const double attending = watch_.time([&](int) { backend.forward(inputs); });
    const double hopping = watch_.time([&](int) { hop(own, next, other, previous, group).wait(); });
    const double both = watch_.time([&](int) {
      auto pending = hop(own, next, other, previous, group);
      backend.forward(inputs);
      pending.wait();
    });
    return std::clamp((attending + hopping - both) / std::min(attending, hopping), 0.0, 1.0);
  }

  static double positive(double seconds) { return std::max(seconds, kLeast); }

  World& world_;
  Watch watch_;
  at::TensorOptions options_;
  int64_t dim_, head_dim_, heads_, tokens_, rows_;
  double e_;
};

}  // namespace

Machine measured(const Work& work, World& world) { return Calibration(work, world).result(); }

}  // namespace pardiff::plan
