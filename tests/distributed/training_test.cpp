// Gradients of whole models on several ranks, with and without activation checkpointing.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/core/error.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/gradients.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <map>

#include "distributed/golden_flux.h"
#include "models/weight_shards.h"
#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"

namespace pardiff {
namespace {

using testing::FluxLayoutCase;
using testing::GoldenPart;
using testing::inputs_of;
using testing::load;
using testing::on_threads;
using testing::relative_error;
using Tensors = std::map<std::string, at::Tensor>;

constexpr double kGradientTolerance = 1e-10, kParameterTolerance = 1e-8;

void backward(FluxTransformer2DModel& model, const FluxTransformerInputs& inputs) {
  model->forward(inputs).square().mean().backward();
}

Tensors gradients_of(FluxTransformer2DModel& model) {
  Tensors gradients;
  for (const auto& item : model->named_parameters()) gradients[item.key()] = item.value().grad().clone();
  return gradients;
}

Tensors gradients_of(FluxTransformer2DModel& model, const FluxTransformerInputs& inputs) {
  model->zero_grad();
  backward(model, inputs);
  return gradients_of(model);
}

at::Tensor sliced(const at::Tensor& whole, const std::map<std::string, TensorSlice>& slices, const std::string& name) {
  const auto found = slices.find(name);
  if (found == slices.end()) return whole;
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : found->second.ranges) parts.push_back(whole.slice(found->second.dim, begin, end));
  return at::cat(parts, found->second.dim);
}

std::map<std::string, TensorSlice> slices_of(FluxTransformer2DModel& model, const ParallelConfig& config,
                                             const World& world) {
  const auto mesh = config.mesh(world.rank(), world.size());
  return tensor_parallel_slices(*model, model->tensor_parallel_plan(), mesh.size("tp"), mesh.index("tp"));
}

// The gradient of what every block is conditioned on is added up by blocks when they are recomputed: in another order.
bool is_before_blocks(const std::string& name) { return name.starts_with("time_text_embed."); }

class WholeModel : public ::testing::TestWithParam<FluxLayoutCase> {};
INSTANTIATE_TEST_SUITE_P(Layouts, WholeModel,
                         ::testing::ValuesIn(testing::flux_layouts_of_both_rotations({2, 3, 4, 6})),
                         [](const auto& parameter) { return parameter.param.name(); });

TEST_P(WholeModel, ReducedGradientsAreOneRanksWithAndWithoutCheckpointing) {
  const auto layout = GetParam();
  for (const auto* name : {"golden/transformer_plain", "golden/transformer_guided"}) {
    const GoldenPart golden(name);
    auto whole = load(golden, at::kDouble);
    // Even for all layouts, and with an odd number of tokens, of which some ranks have none.
    const std::pair<int64_t, int64_t> sizes[] = {{12, 12}, {7, 5}, {3, 1}};
    for (const auto& [image, text] : sizes) {
      const auto inputs = inputs_of(golden, at::kDouble, image, text);
      if (!layout.accepts(inputs, whole->attention_heads())) continue;
      const auto expected = gradients_of(whole, inputs);
      on_threads(layout.ranks(), [&, what = text_of(name, " ", image, " + ", text)](World& world) {
        auto model = load(golden, at::kDouble);
        const auto slices = slices_of(model, layout.config(), world);
        model->enable_parallelism(layout.config(), world);
        const auto plain = gradients_of(model, inputs);
        model->enable_gradient_checkpointing();
        const auto checkpointed = gradients_of(model, inputs);
        reduce_gradients(*model);
        const auto reduced = gradients_of(model);
        for (const auto& [parameter, gradient] : expected) {
          if (is_before_blocks(parameter)) {
            EXPECT_LE(relative_error(checkpointed.at(parameter), plain.at(parameter)), kGradientTolerance) << parameter;
          } else {
            EXPECT_TRUE(at::equal(checkpointed.at(parameter), plain.at(parameter))) << parameter << " " << what;
          }
          EXPECT_LE(relative_error(reduced.at(parameter), sliced(gradient, slices, parameter)), kGradientTolerance)
              << parameter << " " << what;
        }
      });
    }
  }
}

Tensors after_three_steps(FluxTransformer2DModel& model, const FluxTransformerInputs& inputs) {
  const auto parts = model->weight_parts();
  torch::optim::AdamW optimizer(parts.empty() ? model->parameters() : parts,
                                torch::optim::AdamWOptions(1e-3).betas({0.9, 0.999}).eps(1e-8).weight_decay(0.01));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    backward(model, inputs);
    reduce_gradients(*model);
    optimizer.step();
  }
  if (const auto& shards = model->weight_shards()) shards->restore();
  Tensors parameters;
  for (const auto& item : model->named_parameters()) parameters[item.key()] = item.value().detach();
  return parameters;
}

class Training : public ::testing::TestWithParam<FluxLayoutCase> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Training, ::testing::ValuesIn(testing::flux_layouts_of_both_rotations({4})),
                         [](const auto& parameter) { return parameter.param.name(); });

// Every rank's parameters after three steps, and that each has moved.
void expect_three_steps_of_one_rank(const FluxTransformerInputs& inputs, const ParallelConfig& config) {
  const GoldenPart golden("golden/transformer_guided");
  auto whole = load(golden, at::kDouble);
  const auto expected = after_three_steps(whole, inputs);
  const auto before = load(golden, at::kDouble)->named_parameters();
  on_threads(config.ranks(), [&](World& world) {
    auto model = load(golden, at::kDouble);
    const auto slices = slices_of(model, config, world);
    model->enable_parallelism(config, world);
    for (const auto& [name, parameter] : after_three_steps(model, inputs)) {
      EXPECT_LE(testing::absolute_error(parameter, sliced(expected.at(name), slices, name)), kParameterTolerance)
          << name;
      EXPECT_GT(testing::absolute_error(parameter, sliced(before[name], slices, name)), 0) << name;
    }
  });
}

TEST_P(Training, ThreeStepsGiveOneRanksParameters) {
  const GoldenPart golden("golden/transformer_guided");
  // Anything modes with sizes that no number of ranks divides.
  const bool any_length = GetParam().takes_any_length();
  const int64_t image = any_length ? 7 : 12, text = any_length ? 5 : 12;
  expect_three_steps_of_one_rank(inputs_of(golden, at::kDouble, image, text), GetParam().config());
}

// The groups train on the same data, whose mean gradient is one group's.
TEST(TrainingOnDataAxes, ThreeStepsGiveOneRanksParameters) {
  const GoldenPart golden("golden/transformer_guided");
  const auto inputs = inputs_of(golden, at::kDouble, 12, 12);
  const ContextParallelConfig ring{.ring_degree = 2}, ulysses{.ulysses_degree = 2};
  const TensorParallelConfig tp{.tp_degree = 2};
  const ParallelConfig configs[] = {
      {.dp_degree = 4},
      {.fsdp_degree = 4},
      {.dp_degree = 2, .fsdp_degree = 2},
      {.context_parallel_config = ring, .dp_degree = 2},
      {.context_parallel_config = ulysses, .dp_degree = 2},
      {.tensor_parallel_config = tp, .dp_degree = 2},
      {.context_parallel_config = ring, .fsdp_degree = 2},
      {.tensor_parallel_config = tp, .fsdp_degree = 2},
  };
  for (const auto& config : configs) {
    SCOPED_TRACE(config.mesh(0, 4).to_string());
    expect_three_steps_of_one_rank(inputs, config);
  }
}

FluxTransformerInputs scaled(FluxTransformerInputs inputs, double factor) {
  inputs.hidden_states = inputs.hidden_states * factor;
  return inputs;
}

TEST(ReduceGradients, TakesTheMeanOverRanksOfDifferentData) {
  const GoldenPart golden("golden/transformer_guided");
  const auto inputs = inputs_of(golden, at::kDouble, 7, 5);
  auto whole = load(golden, at::kDouble);
  const Tensors alone[] = {gradients_of(whole, inputs), gradients_of(whole, scaled(inputs, 2))};
  const ContextParallelConfig ring{.ring_degree = 2, .ring_anything = true};
  ParallelConfig with_tensor{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}, .dp_degree = 2};
  auto with_mesh = ring;
  for (const int layout : {0, 1, 2}) {
    on_threads(4, [&, layout](World& world) {
      auto model = load(golden, at::kDouble);
      auto config = layout == 0 ? ParallelConfig{.context_parallel_config = ring, .dp_degree = 2} : with_tensor;
      if (layout == 2) {  // a mesh of the caller's, in another order of axes
        auto custom = ring;
        custom.mesh = Mesh(world.rank(), world.size(), {{"ulysses", 1}, {"ring", 2}, {"fsdp", 2}});
        config = {.context_parallel_config = custom};
      }
      const auto slices = slices_of(model, config, world);
      model->enable_parallelism(config, world);
      const int data = model->mesh()->index(layout == 2 ? "fsdp" : "dp");
      backward(model, scaled(inputs, data + 1));
      reduce_gradients(*model);
      for (const auto& [name, gradient] : gradients_of(model)) {
        const auto mean = (alone[0].at(name) + alone[1].at(name)) / 2;
        EXPECT_LE(relative_error(gradient, sliced(mean, slices, name)), kGradientTolerance) << name << " " << layout;
      }
    });
  }
}

struct ShardedCase {
  std::string name;
  ParallelConfig config;
};

std::vector<ShardedCase> sharded_cases() {
  const ContextParallelConfig ring{.ring_degree = 2, .ring_anything = true},
      ulysses{.ulysses_degree = 2, .ulysses_anything = true};
  const TensorParallelConfig tensor{.tp_degree = 2};
  return {
      {"fsdp2", {.fsdp_degree = 2}},
      {"fsdp3", {.fsdp_degree = 3}},
      {"dp2_fsdp2", {.dp_degree = 2, .fsdp_degree = 2}},
      {"fsdp2_ring2", {.context_parallel_config = ring, .fsdp_degree = 2}},
      {"over_ring", {.context_parallel_config = ring, .shard_weights_over = {"ring"}}},
      {"fsdp2_over_ulysses", {.context_parallel_config = ulysses, .fsdp_degree = 2, .shard_weights_over = {"ulysses"}}},
      {"tp2_fsdp2", {.tensor_parallel_config = tensor, .fsdp_degree = 2}},
  };
}

class ShardedWeights : public ::testing::TestWithParam<ShardedCase> {};
INSTANTIATE_TEST_SUITE_P(Layouts, ShardedWeights, ::testing::ValuesIn(sharded_cases()),
                         [](const auto& tested) { return tested.param.name; });

int64_t data_index(const Mesh& mesh) { return mesh.index("dp") * mesh.size("fsdp") + mesh.index("fsdp"); }

Tensors mean_of(const std::vector<Tensors>& all) {
  auto mean = all.front();
  for (auto& [name, gradient] : mean) {
    for (size_t i = 1; i < all.size(); ++i) gradient = gradient + all[i].at(name);
    gradient = gradient / static_cast<double>(all.size());
  }
  return mean;
}

TEST_P(ShardedWeights, HaveOneRanksGradients) {
  const GoldenPart golden("golden/transformer_guided");
  const auto inputs = inputs_of(golden, at::kDouble, 7, 5);
  const auto config = GetParam().config;
  auto whole = load(golden, at::kDouble);
  std::vector<Tensors> alone;
  for (int data = 0; data < config.dp_degree * config.fsdp_degree; ++data) {
    alone.push_back(gradients_of(whole, scaled(inputs, data + 1)));
  }
  const auto expected = mean_of(alone);
  on_threads(config.ranks(), [&](World& world) {
    auto model = load(golden, at::kDouble);
    const auto slices = slices_of(model, config, world);
    model->enable_parallelism(config, world);
    model->enable_gradient_checkpointing();  // changes nothing: sharded weights are gathered anew in any case
    backward(model, scaled(inputs, static_cast<double>(data_index(*model->mesh()) + 1)));
    for (const auto& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
    reduce_gradients(*model);
    model->weight_shards()->restore();
    for (const auto& [name, gradient] : gradients_of(model)) {
      EXPECT_LE(relative_error(gradient, sliced(expected.at(name), slices, name)), kGradientTolerance) << name;
    }
  });
}

TEST_P(ShardedWeights, ThreeStepsGiveOneRanksParameters) {
  const GoldenPart golden("golden/transformer_guided");
  expect_three_steps_of_one_rank(inputs_of(golden, at::kDouble, 7, 5), GetParam().config);
}

TEST(ShardedTraffic, GatherAUnitTwiceAndSumItOnceATrainingStep) {
  const GoldenPart golden("golden/transformer_guided");
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    on_threads(3, [&](World& world) {
      auto model = load(golden, dtype);
      model->enable_parallelism(ParallelConfig{.fsdp_degree = 3}, world);
      int64_t elements = 0;
      for (const auto& unit : model->weight_units()) {
        int64_t own = 0;
        for (const auto& parameter : unit->parameters()) own += parameter.numel();
        elements += 2 * ((own + 2) / 3);
      }
      const auto before = world.counter().counts();
      backward(model, inputs_of(golden, dtype, 7, 5));
      const auto counts = difference(world.counter().counts(), before);
      const auto units = std::ssize(model->weight_units());
      EXPECT_EQ(counts.size(), 2);
      EXPECT_EQ(counts.at("all_gather").calls, 2 * units);
      EXPECT_EQ(counts.at("all_gather").bytes_sent, 2 * elements * static_cast<int64_t>(c10::elementSize(dtype)));
      EXPECT_EQ(counts.at("reduce_scatter").calls, units);
      EXPECT_EQ(counts.at("reduce_scatter").bytes_sent, 4 * elements);  // halves are added in float32
    });
  }
}

TEST(ReduceGradients, LeavesAModelOnOneRankAlone) {
  const GoldenPart golden("golden/transformer_plain");
  auto model = load(golden, at::kDouble);
  const auto before = gradients_of(model, inputs_of(golden, at::kDouble));
  reduce_gradients(*model);
  for (const auto& [name, gradient] : gradients_of(model)) EXPECT_TRUE(at::equal(gradient, before.at(name))) << name;
}

struct FewImpl : torch::nn::Module {
  FewImpl() {
    for (const auto* name : {"first", "second", "never"}) register_parameter(name, at::zeros({3}));
    register_parameter("half", at::zeros({2}, at::kBFloat16));
    register_parameter("frozen", at::zeros({2}), /*requires_grad=*/false);
    register_parameter("again", named_parameters()["first"]);
  }
  at::Tensor operator[](const std::string& name) const { return named_parameters()[name]; }
};

Mesh ring_of(const World& world) { return Mesh(world.rank(), world.size(), {{"ring", world.size()}}); }

TEST(ReduceGradients, TakesZerosForAbsentGradientsAndSumsHalvesInFloat32) {
  for (const int64_t bucket_bytes : {int64_t{1} << 20, int64_t{1}}) {
    on_threads(4, [bucket_bytes](World& world) {
      FewImpl few;
      const int rank = world.rank();
      if (rank == 0) few["first"].mutable_grad() = at::full({3}, 5.0);
      few["second"].mutable_grad() = at::full({3}, 1.0 + rank);
      // bfloat16 has no 257: added in its own precision, the ones would be lost.
      const float parts[] = {256, 1, 1, -256};
      few["half"].mutable_grad() = at::full({2}, parts[rank], at::kBFloat16);
      reduce_gradients(few, world, ring_of(world), {.bucket_bytes = bucket_bytes});
      EXPECT_TRUE(at::equal(few["first"].grad(), at::full({3}, 5.0)));
      EXPECT_TRUE(at::equal(few["second"].grad(), at::full({3}, 10.0)));
      EXPECT_TRUE(at::equal(few["half"].grad(), at::full({2}, 2.0, at::kBFloat16)));
      EXPECT_FALSE(few["never"].grad().defined());
      EXPECT_FALSE(few["frozen"].grad().defined());
      const auto counts = world.counter().counts();
      // Whether gradients are absent, and the gradients: together, or each alone.
      EXPECT_EQ(counts.at("all_reduce").calls, 1 + (bucket_bytes > 1 ? 1 : 3));
      EXPECT_EQ(counts.at("all_gather").calls, 1);
    });
  }
}

TEST(ReduceGradients, FailsOnEveryRankIfTheyTrainDifferentParameters) {
  std::atomic<int> failures = 0;
  on_threads(3, [&failures](World& world) {
    FewImpl few;
    if (world.rank() == 1) few["second"].set_requires_grad(false);
    testing::expect_failure<CommError>([&] { reduce_gradients(few, world, ring_of(world)); },
                                       {"rank 1 trains", "rank 0", "frozen"});
    ++failures;
  });
  EXPECT_EQ(failures, 3);
}

TEST(ReduceGradients, RefusesTheTwoPassesOfGuidance) {
  on_threads(2, [](World& world) {
    FewImpl few;
    const Mesh mesh(world.rank(), world.size(), {{"cfg", 2}});
    testing::expect_failure<ConfigError>([&] { reduce_gradients(few, world, mesh); },
                                         {"cfg", "inference", "dp_degree"});
    testing::expect_failure<ConfigError>(
        [&] { reduce_gradients(few, world, ring_of(world), {.on_local_heads = {"norms"}}); }, {"'norms'"});
    EXPECT_TRUE(world.counter().counts().empty());
  });
}

// Bytes that this thread has taken and not given back, from the allocator itself.
class KeptBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { kept_ += bytes; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t kept() const { return kept_; }

 private:
  int64_t kept_ = 0;
};

// What the graph of one forward pass holds.
int64_t bytes_of_graph(FluxTransformer2DModel& model, const FluxTransformerInputs& inputs) {
  const auto meter = std::make_shared<KeptBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  const auto output = model->forward(inputs);
  return meter->kept();
}

// Filled, not drawn: ranks on threads share the generator.
FluxTransformer2DModel filled(const FluxTransformerConfig& config) {
  FluxTransformer2DModel model(config, nn::ParameterOptions{.allocate = false});
  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) item.value().set_data(at::full(item.value().sizes(), 0.01f));
  return model;
}

class CheckpointedMemory : public ::testing::TestWithParam<FluxLayoutCase> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, CheckpointedMemory,
    ::testing::Values(FluxLayoutCase{1, 1, 1}, FluxLayoutCase{2, 1, 1},
                      FluxLayoutCase{.ring = 1, .ulysses = 2, .tp = 1, .ulysses_anything = true},
                      FluxLayoutCase{1, 1, 2},
                      FluxLayoutCase{.ring = 2, .ulysses = 1, .tp = 1, .ring_anything = true, .rotate = false},
                      FluxLayoutCase{2, 2, 1}),
    [](const auto& parameter) { return parameter.param.name(); });

// A block more costs what leaves it, which the next one keeps as its input, and its modulation: six chunks for each
// stream of a double block, three for a single one. Cut modulations keep no more than what was gathered from them.
TEST_P(CheckpointedMemory, ABlockKeepsOnlyItsInputs) {
  const GoldenPart golden("golden/transformer_guided");
  const auto inputs = inputs_of(golden, at::kFloat, 12, 12);
  on_threads(GetParam().ranks(), [&, layout = GetParam()](World& world) {
    const auto bytes = [&](int64_t doubles, int64_t singles, bool checkpointing) {
      auto config = FluxTransformerConfig::from_file(golden.config());
      config.num_layers = doubles;
      config.num_single_layers = singles;
      auto model = filled(config);
      if (layout.ranks() > 1) model->enable_parallelism(layout.config(), world);
      if (checkpointing) model->enable_gradient_checkpointing();
      return bytes_of_graph(model, inputs);
    };
    const int64_t batch = inputs.hidden_states.size(0), tokens = 24 / (layout.ring * layout.ulysses);
    const int64_t width = 4 * 16 * 4;  // heads, head_dim, bytes
    const int64_t streams = batch * tokens * width, chunk = batch * width;
    const int64_t kept = bytes(2, 2, true), copies = layout.tp > 1 ? 3 : 1;
    EXPECT_GE(bytes(4, 2, true) - kept, 2 * (streams + 12 * chunk));
    EXPECT_LE(bytes(4, 2, true) - kept, 2 * (streams + copies * 12 * chunk));
    EXPECT_GE(bytes(2, 4, true) - kept, 2 * (streams + 3 * chunk));
    EXPECT_LE(bytes(2, 4, true) - kept, 2 * (streams + copies * 3 * chunk));
    EXPECT_GT(bytes(4, 2, false) - bytes(2, 2, false), 10 * 2 * streams / layout.tp);
    EXPECT_GT(bytes(2, 4, false) - bytes(2, 2, false), 10 * 2 * streams / layout.tp);
  });
}

// The layouts of a call belong to that call, also when its blocks run again after another one.
TEST(Checkpointing, TwoForwardsOfDifferentSizesMayComeBeforeTheirBackwards) {
  const GoldenPart golden("golden/transformer_guided");
  const auto small = inputs_of(golden, at::kDouble, 7, 5), large = inputs_of(golden, at::kDouble, 12, 9);
  on_threads(4, [&](World& world) {
    auto model = load(golden, at::kDouble);
    model->enable_parallelism(FluxLayoutCase{2, 2, 1, true, true}.config(), world);
    const auto gradients = [&] {
      model->zero_grad();
      const auto loss = model->forward(small).square().mean() + model->forward(large).square().mean();
      loss.backward();
      return gradients_of(model);
    };
    const auto plain = gradients();
    model->enable_gradient_checkpointing();
    for (const auto& [name, gradient] : gradients()) EXPECT_LE(relative_error(gradient, plain.at(name)), 1e-12) << name;
  });
}

}  // namespace
}  // namespace pardiff
