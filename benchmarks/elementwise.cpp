// The fused passes, each beside the engine's operators that it replaces, at the sizes of a step.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <pardiff/nn/activation.h>
#include <pardiff/nn/modulation.h>
#include <pardiff/nn/rope.h>

namespace pardiff::nn {
namespace {

// Arguments: tokens, heads, head_dim. Two benchmarks for one formula: `Fused` and `Plain`.
struct Sizes {
  int64_t tokens, heads, head_dim, dim;
  explicit Sizes(const benchmark::State& state)
      : tokens(state.range(0)), heads(state.range(1)), head_dim(state.range(2)), dim(heads * head_dim) {}
};

template <typename Work>
void repeat(benchmark::State& state, int64_t elements, const Work& work) {
  const at::NoGradGuard no_grad;
  for (auto round : state) {
    static_cast<void>(round);
    work();
  }
  state.SetItemsProcessed(state.iterations() * elements);
}

void norm_fused(benchmark::State& state) {
  const Sizes sizes(state);
  const auto x = at::randn({1, sizes.tokens, sizes.dim}), shift = at::randn({1, 1, sizes.dim});
  repeat(state, x.numel(), [&] { benchmark::DoNotOptimize(modulated_norm(x, shift, shift)); });
}

void norm_plain(benchmark::State& state) {
  const Sizes sizes(state);
  const auto x = at::randn({1, sizes.tokens, sizes.dim}), shift = at::randn({1, 1, sizes.dim});
  repeat(state, x.numel(),
         [&] { benchmark::DoNotOptimize(at::layer_norm(x, {sizes.dim}, {}, {}, 1e-6) * (1 + shift) + shift); });
}

void residual_fused(benchmark::State& state) {
  const Sizes sizes(state);
  const auto x = at::randn({1, sizes.tokens, sizes.dim}), gate = at::randn({1, 1, sizes.dim});
  auto y = at::zeros_like(x);  // stays finite
  repeat(state, x.numel(), [&] { y = gated_residual(x, gate, std::move(y)).zero_(); });
}

void residual_plain(benchmark::State& state) {
  const Sizes sizes(state);
  const auto x = at::randn({1, sizes.tokens, sizes.dim}), gate = at::randn({1, 1, sizes.dim});
  auto y = at::zeros_like(x);
  repeat(state, x.numel(), [&] { y = (x + gate * y).zero_(); });
}

struct Headed {
  at::Tensor x;
  RMSNorm norm;
  RotaryTable table;
  explicit Headed(const Sizes& sizes)
      : x(at::randn({1, sizes.tokens, sizes.heads, sizes.head_dim})),
        norm(sizes.head_dim),
        table(rotary_table(at::arange(sizes.tokens).unsqueeze(1), {sizes.head_dim})) {}
};

void rotation_fused(benchmark::State& state) {
  Headed given{Sizes(state)};
  auto x = given.x;
  repeat(state, x.numel(), [&] { x = norm_and_rotate(given.norm, std::move(x), given.table); });
}

void rotation_plain(benchmark::State& state) {
  Headed given{Sizes(state)};
  repeat(state, given.x.numel(), [&] { benchmark::DoNotOptimize(rotate(given.norm->forward(given.x), given.table)); });
}

void gelu_fused(benchmark::State& state) {
  const Sizes sizes(state);
  auto x = at::randn({1, sizes.tokens, 4 * sizes.dim});
  repeat(state, x.numel(), [&] { x = nn::gelu_tanh(std::move(x)); });
}

void gelu_plain(benchmark::State& state) {
  const Sizes sizes(state);
  auto x = at::randn({1, sizes.tokens, 4 * sizes.dim});
  repeat(state, x.numel(), [&] { at::gelu_(x, "tanh"); });
}

void silu_fused(benchmark::State& state) {
  const Sizes sizes(state);
  auto x = at::randn({sizes.tokens, sizes.dim});
  repeat(state, x.numel(), [&] { x = nn::silu(std::move(x)); });
}

void silu_plain(benchmark::State& state) {
  const Sizes sizes(state);
  auto x = at::randn({sizes.tokens, sizes.dim});
  repeat(state, x.numel(), [&] { at::silu_(x); });
}

// The joint sequence of `bench` at 512x512.
void step_sizes(benchmark::internal::Benchmark* benchmark) { benchmark->Args({1536, 12, 64})->UseRealTime(); }

BENCHMARK(norm_fused)->Apply(step_sizes);
BENCHMARK(norm_plain)->Apply(step_sizes);
BENCHMARK(residual_fused)->Apply(step_sizes);
BENCHMARK(residual_plain)->Apply(step_sizes);
BENCHMARK(rotation_fused)->Apply(step_sizes);
BENCHMARK(rotation_plain)->Apply(step_sizes);
BENCHMARK(gelu_fused)->Apply(step_sizes);
BENCHMARK(gelu_plain)->Apply(step_sizes);
BENCHMARK(silu_fused)->Apply(step_sizes);
BENCHMARK(silu_plain)->Apply(step_sizes);

}  // namespace
}  // namespace pardiff::nn

BENCHMARK_MAIN();
