// The golden FLUX transformers under every layout of 2, 3, 4 and 6 ranks.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/error.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/flux_transformer.h>

#include "distributed/golden_flux.h"
#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"

namespace pardiff {
namespace {

using testing::FluxLayoutCase;
using testing::GoldenPart;
using testing::inputs_of;
using testing::load;

constexpr double kOutputTolerance = 1e-5;

class FluxLayout : public ::testing::TestWithParam<FluxLayoutCase> {};
INSTANTIATE_TEST_SUITE_P(All, FluxLayout, ::testing::ValuesIn(testing::flux_layouts({2, 3, 4, 6})),
                         [](const auto& parameter) { return parameter.param.name(); });

TEST_P(FluxLayout, GivesTheReferencesOutput) {
  int runs = 0;
  for (const auto* name : {"golden/transformer_plain", "golden/transformer_guided"}) {
    const GoldenPart golden(name);
    const auto inputs = inputs_of(golden, at::kFloat);
    const int64_t heads = golden.config().integer("num_attention_heads", 0);
    if (!GetParam().accepts(inputs, heads)) continue;
    ++runs;
    testing::on_threads(GetParam().ranks(), [&](World& world) {
      const at::NoGradGuard no_grad;
      auto model = load(golden, at::kFloat);
      model->enable_parallelism(GetParam().config(), world);
      EXPECT_LE(testing::absolute_error(model->forward(inputs), golden["output.proj_out"]), kOutputTolerance) << name;
    });
  }
  if (runs == 0) GTEST_SKIP() << "no golden file has sizes that this layout's plain mode takes";
}

TEST(FluxParallelism, IsTakenBackByDisable) {
  const GoldenPart golden("golden/transformer_plain");
  const auto inputs = inputs_of(golden, at::kFloat);
  run_as_threads(
      2,
      [&](World& world) {
        const at::NoGradGuard no_grad;
        auto model = load(golden, at::kFloat);
        const auto before = model->forward(inputs);
        model->enable_parallelism(ContextParallelConfig{.ring_degree = 2, .ring_anything = true}, world);
        testing::expect_failure<ConfigError>(
            [&] { model->enable_parallelism(ContextParallelConfig{.ulysses_degree = 2}, world); }, {"already applied"});
        model->forward(inputs);
        model->disable_parallelism();
        EXPECT_FALSE(model->is_parallel());
        const auto counts = world.counter().counts();
        EXPECT_TRUE(at::equal(model->forward(inputs), before));
        EXPECT_TRUE(difference(world.counter().counts(), counts).empty());
        model->enable_parallelism(ContextParallelConfig{.ulysses_degree = 2, .ulysses_anything = true}, world);
        EXPECT_LE(testing::absolute_error(model->forward(inputs), before), kOutputTolerance);
      },
      {.device = "cpu", .timeout_s = 60});
}

TEST(FluxParallelism, ARejectedCallCanBeCorrectedAndRepeated) {
  const GoldenPart golden("golden/transformer_guided");
  const auto inputs = inputs_of(golden, at::kFloat);
  run_as_threads(
      6,
      [&](World& world) {
        const at::NoGradGuard no_grad;
        auto model = load(golden, at::kFloat);
        const auto refused = [&](const ParallelConfig& config, const std::vector<std::string>& parts) {
          testing::expect_failure<ConfigError>([&] { model->enable_parallelism(config, world); }, parts);
          EXPECT_FALSE(model->is_parallel());
        };
        const auto context = [](const ContextParallelConfig& config) {
          return ParallelConfig{.context_parallel_config = config};
        };
        refused(context({.ring_degree = 2}), {"multiply to 2", "6 ranks"});
        refused(context({.ulysses_degree = 6}), {"4 attention heads", "ulysses_degree 6", "ulysses_anything"});
        refused({.context_parallel_config = ContextParallelConfig{.ulysses_degree = 3, .ring_anything = true},
                 .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}},
                {"ring_anything is set"});
        refused({.tensor_parallel_config = TensorParallelConfig{.tp_degree = 6}}, {"tp_degree 6", "4 attention heads"});
        // The context half is right, the tensor half is not: neither is applied.
        refused({.context_parallel_config = ContextParallelConfig{.ring_degree = 2},
                 .tensor_parallel_config = TensorParallelConfig{.tp_degree = 3}},
                {"tp_degree 3", "4 attention heads"});
        refused({.context_parallel_config = ContextParallelConfig{.ulysses_degree = 3},
                 .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}},
                {"2 attention heads", "on each tensor-parallel rank", "ulysses_degree 3"});
        EXPECT_TRUE(world.counter().counts().empty());
        model->enable_parallelism(
            ParallelConfig{
                .context_parallel_config = ContextParallelConfig{.ulysses_degree = 3, .ulysses_anything = true},
                .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}},
            world);
        EXPECT_LE(testing::absolute_error(model->forward(inputs), golden["output.proj_out"]), kOutputTolerance);
      },
      {.device = "cpu", .timeout_s = 60});
}

// 4 per double block and 1 per single block in the reference; those of a double block go in pairs here.
TEST(FluxParallelism, ReducesOncePerStageUnderTensorParallelism) {
  const GoldenPart golden("golden/transformer_guided");
  run_as_threads(2,
                 [&](World& world) {
                   const at::NoGradGuard no_grad;
                   auto model = load(golden, at::kFloat);
                   model->enable_parallelism(TensorParallelConfig{.tp_degree = 2}, world);
                   const auto before = world.counter().counts();
                   model->forward(inputs_of(golden, at::kFloat));
                   const auto counts = difference(world.counter().counts(), before);
                   EXPECT_EQ(counts.size(), 1u);
                   const auto& config = model->config();
                   EXPECT_EQ(counts.at("all_reduce").calls, 2 * config.num_layers + config.num_single_layers);
                 },
                 {.device = "cpu", .timeout_s = 60});
}

}  // namespace
}  // namespace pardiff
