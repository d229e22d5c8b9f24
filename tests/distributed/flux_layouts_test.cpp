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

FluxTransformerInputs moved(FluxTransformerInputs inputs, at::Device device) {
  for (auto* tensor : {&inputs.hidden_states, &inputs.encoder_hidden_states, &inputs.pooled_projections,
                       &inputs.timestep, &inputs.img_ids, &inputs.txt_ids, &inputs.guidance}) {
    if (tensor->defined()) *tensor = tensor->to(device);
  }
  return inputs;
}

class FluxLayout : public ::testing::TestWithParam<FluxLayoutCase> {};
INSTANTIATE_TEST_SUITE_P(All, FluxLayout, ::testing::ValuesIn(testing::flux_layouts({2, 3, 4, 6})),
                         [](const auto& parameter) { return parameter.param.name(); });

// A plain mode whose degrees do not divide a golden file's sizes refuses it on every rank; all others compute it.
TEST_P(FluxLayout, GivesTheReferencesOutput) {
  for (const auto* name : {"golden/transformer_plain", "golden/transformer_guided"}) {
    const GoldenPart golden(name);
    const auto inputs = inputs_of(golden, at::kFloat);
    const bool accepts = GetParam().accepts(inputs, golden.config().integer("num_attention_heads", 0));
    testing::on_threads(GetParam().ranks(), [&](World& world) {
      const at::NoGradGuard no_grad;
      auto model = load(golden, at::kFloat);
      model->to(world.device());
      const auto output = [&] {
        model->enable_parallelism(GetParam().config(), world);
        return model->forward(moved(inputs, world.device()));
      };
      if (accepts) {
        EXPECT_LE(testing::absolute_error(output(), golden["output.proj_out"]), kOutputTolerance) << name;
      } else {
        EXPECT_THROW(output(), Error) << name;
      }
    });
  }
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

TEST(FluxParallelism, OfTensorsIsTakenBackByDisable) {
  const GoldenPart golden("golden/transformer_guided");
  const auto inputs = inputs_of(golden, at::kFloat);
  const auto whole = load(golden, at::kFloat);
  testing::on_threads(4, [&](World& world) {
    const at::NoGradGuard no_grad;
    auto model = load(golden, at::kFloat);
    // Memory of their own, as gathered weights have: how a product rounds depends on where its operands lie.
    for (auto& parameter : model->parameters()) parameter.set_data(parameter.clone());
    const auto before = model->forward(inputs);
    // Alone, and with context parallelism, on a mesh whose further axis is the caller's.
    const Mesh mesh(world.rank(), 4, {{"tp", 2}, {"replica", 2}});
    const ParallelConfig configs[] = {
        {.tensor_parallel_config = TensorParallelConfig{.mesh = mesh}},
        FluxLayoutCase{.ring = 1, .ulysses = 2, .tp = 2, .ulysses_anything = true}.config(),
        {.tensor_parallel_config = TensorParallelConfig{.tp_degree = 4}}};
    for (const auto& config : configs) {
      model->enable_parallelism(config, world);
      EXPECT_LE(testing::absolute_error(model->forward(inputs), before), kOutputTolerance);
      model->disable_parallelism();
      EXPECT_FALSE(model->is_parallel());
      for (const auto& parameter : whole->named_parameters()) {
        EXPECT_TRUE(at::equal(model->named_parameters()[parameter.key()], parameter.value())) << parameter.key();
      }
      const auto counts = world.counter().counts();
      EXPECT_TRUE(at::equal(model->forward(inputs), before));
      EXPECT_TRUE(difference(world.counter().counts(), counts).empty());
    }
  });
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

// FLUX.1's depth, and hardly any width.
FluxTransformerConfig deep_config() {
  return {.in_channels = 8,
          .attention_head_dim = 8,
          .num_attention_heads = 4,
          .joint_attention_dim = 12,
          .pooled_projection_dim = 6,
          .axes_dims_rope = {4, 2, 2}};
}

FluxTransformerInputs small_inputs(const FluxTransformerConfig& config, int64_t batch, int64_t image, int64_t text) {
  const auto axes = static_cast<int64_t>(config.axes_dims_rope.size());
  return {.hidden_states = at::ones({batch, image, config.in_channels}),
          .encoder_hidden_states = at::ones({batch, text, config.joint_attention_dim}),
          .pooled_projections = at::ones({batch, config.pooled_projection_dim}),
          .timestep = at::full({batch}, 0.5),
          .img_ids = at::zeros({image, axes}),
          .txt_ids = at::zeros({text, axes})};
}

// The reference takes 114: 4 per double block and 1 per single block. Those of a double block go in pairs here.
TEST(FluxParallelism, TakesAtMost76ReductionsAndOneGatherForAStepUnderTensorParallelism) {
  const auto config = deep_config();
  constexpr int64_t kBatch = 2, kImage = 5, kText = 3, kBytes = 4;
  for (const int tp : {2, 4}) {
    testing::on_threads(tp, [&](World& world) {
      const at::NoGradGuard no_grad;
      FluxTransformer2DModel model(config, nn::ParameterOptions{.allocate = false});  // zeros: only counted
      model->enable_parallelism(TensorParallelConfig{.tp_degree = tp}, world);
      const auto before = world.counter().counts();
      model->forward(small_inputs(config, kBatch, kImage, kText));
      const auto counts = difference(world.counter().counts(), before);
      EXPECT_EQ(counts.size(), 2u);
      // Every one of them sums a stream of both texts and image over the ranks.
      EXPECT_EQ(counts.at("all_reduce").calls, 2 * 19 + 38);
      const int64_t stream = kBatch * (kImage + kText) * config.inner_dim() * kBytes;
      EXPECT_EQ(counts.at("all_reduce").bytes_sent, 76 * (2 * (tp - 1) * stream / tp));
      // The modulations of all blocks: 6 chunks for each stream of a double block, 3 for a single block, 2 at the end.
      EXPECT_EQ(counts.at("all_gather").calls, 1);
      const int64_t modulations = kBatch * (19 * 12 + 38 * 3 + 2) * config.inner_dim() * kBytes;
      EXPECT_EQ(counts.at("all_gather").bytes_sent, (tp - 1) * modulations / tp);
    });
  }
}

TEST(FluxParallelism, TakesOneReductionForAllModulationsInBackward) {
  const auto config = deep_config();
  testing::on_threads(2, [&](World& world) {
    FluxTransformer2DModel model(config, nn::ParameterOptions{.allocate = false});  // zeros: only counted
    model->enable_parallelism(TensorParallelConfig{.tp_degree = 2}, world);
    const auto output = model->forward(small_inputs(config, 1, 5, 3));
    const auto before = world.counter().counts();
    output.sum().backward();
    const auto counts = difference(world.counter().counts(), before);
    EXPECT_EQ(counts.size(), 1u);
    // Each column-parallel layer sums the gradient of its input: 8 of a double block, 4 of a single block.
    EXPECT_EQ(counts.at("all_reduce").calls, 19 * 8 + 38 * 4 + 1);
  });
}

// Counted on shapes: no weight has any memory here.
TEST(FluxParallelism, KeepsAShareOfAllButTheSmallestParametersUnderTensorParallelism) {
  FluxTransformer2DModel dev(FluxTransformerConfig{.guidance_embeds = true}, nn::ParameterOptions{.allocate = false});
  int64_t all = 0;
  for (const auto& parameter : dev->parameters()) all += parameter.numel();
  for (const int tp : {2, 4, 8}) {
    const auto slices = tensor_parallel_slices(*dev, dev->tensor_parallel_plan(), tp, tp - 1);
    int64_t replicated = 0, sharded = 0;
    for (const auto& parameter : dev->named_parameters()) {
      const auto found = slices.find(parameter.key());
      if (found == slices.end()) {
        replicated += parameter.value().numel();
        continue;
      }
      int64_t kept = 0;
      for (const auto& [begin, end] : found->second.ranges) kept += end - begin;
      sharded += parameter.value().numel() / parameter.value().size(found->second.dim) * kept;
    }
    EXPECT_EQ(sharded * tp + replicated, all) << tp;
    EXPECT_LT(static_cast<double>(replicated), 0.02 * static_cast<double>(all)) << tp;
  }
}

}  // namespace
}  // namespace pardiff
