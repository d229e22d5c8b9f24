// The golden FLUX transformers under every layout of 2, 3, 4 and 6 ranks.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/error.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/flux_transformer.h>

#include <map>

#include "parity/parts/golden_part.h"
#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"

namespace pardiff {
namespace {

using testing::GoldenPart;
using Gradients = std::map<std::string, at::Tensor>;

constexpr double kOutputTolerance = 1e-5, kGradientTolerance = 1e-10;

FluxTransformer2DModel load(const GoldenPart& golden, at::ScalarType dtype) {
  return golden.load<FluxTransformer2DModel>(FluxTransformerConfig::from_file(golden.config()), dtype);
}

// The golden inputs, or their first tokens.
FluxTransformerInputs inputs_of(const GoldenPart& golden, at::ScalarType dtype, int64_t image = -1, int64_t text = -1) {
  const auto tokens = [](const at::Tensor& x, int64_t dim, int64_t count) {
    return count < 0 ? x : x.narrow(dim, 0, count);
  };
  FluxTransformerInputs inputs{
      .hidden_states = tokens(golden["input.hidden_states"].to(dtype), 1, image),
      .encoder_hidden_states = tokens(golden["input.encoder_hidden_states"].to(dtype), 1, text),
      .pooled_projections = golden["input.pooled_projections"].to(dtype),
      .timestep = golden["input.timestep"].to(dtype),
      .img_ids = tokens(golden["input.img_ids"], 0, image),
      .txt_ids = tokens(golden["input.txt_ids"], 0, text)};
  if (golden.config().boolean("guidance_embeds", false)) inputs.guidance = golden["input.guidance"];
  return inputs;
}

struct Answer {
  at::Tensor output;
  Gradients gradients;
};

Answer answer(FluxTransformer2DModel& model, const FluxTransformerInputs& inputs) {
  model->zero_grad();
  const auto output = model->forward(inputs);
  output.square().mean().backward();
  Answer result{output.detach(), {}};
  for (const auto& parameter : model->named_parameters()) {
    result.gradients[parameter.key()] = parameter.value().grad().clone();
  }
  return result;
}

struct Layout {
  int ring, ulysses, tp;
  bool anything;

  int ranks() const { return ring * ulysses * tp; }
  ParallelConfig config() const {
    ParallelConfig config;
    if (ring * ulysses > 1) {
      config.context_parallel_config = ContextParallelConfig{.ring_degree = ring,
                                                             .ulysses_degree = ulysses,
                                                             .ulysses_anything = anything && ulysses > 1,
                                                             .ring_anything = anything && ring > 1};
    }
    if (tp > 1) config.tensor_parallel_config = TensorParallelConfig{.tp_degree = tp};
    return config;
  }
  std::string name() const {
    return "Ring" + std::to_string(ring) + "Ulysses" + std::to_string(ulysses) + "Tp" + std::to_string(tp) +
           (anything ? "Anything" : "");
  }
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int ranks : {2, 3, 4, 6}) {
    for (int ring = 1; ring <= ranks; ++ring) {
      for (int ulysses = 1; ring * ulysses <= ranks; ++ulysses) {
        const int tp = ranks / (ring * ulysses);
        if (ring * ulysses * tp != ranks || tp == 3 || tp == 6) continue;  // 4 heads
        if (4 / tp % ulysses == 0) all.push_back({ring, ulysses, tp, false});
        if (ring * ulysses > 1) all.push_back({ring, ulysses, tp, true});
      }
    }
  }
  return all;
}

class FluxLayout : public ::testing::TestWithParam<Layout> {
 protected:
  void on_threads(const std::function<void(World&)>& work) { testing::on_threads(GetParam().ranks(), work); }
  // Whether the plain mode's rules hold for these inputs.
  bool accepts(const FluxTransformerInputs& inputs, int64_t heads) const {
    const auto layout = GetParam();
    const int64_t ranks = layout.ring * layout.ulysses;
    return layout.anything ||
           (inputs.hidden_states.size(1) % ranks == 0 && inputs.encoder_hidden_states.size(1) % ranks == 0 &&
            heads / layout.tp % layout.ulysses == 0);
  }
};
INSTANTIATE_TEST_SUITE_P(All, FluxLayout, ::testing::ValuesIn(layouts()),
                         [](const auto& parameter) { return parameter.param.name(); });

TEST_P(FluxLayout, GivesTheReferencesOutput) {
  int runs = 0;
  for (const auto* name : {"golden/transformer_plain", "golden/transformer_guided"}) {
    const GoldenPart golden(name);
    const auto inputs = inputs_of(golden, at::kFloat);
    const int64_t heads = golden.config().integer("num_attention_heads", 0);
    if (heads % GetParam().tp != 0 || !accepts(inputs, heads)) continue;
    ++runs;
    on_threads([&](World& world) {
      const at::NoGradGuard no_grad;
      auto model = load(golden, at::kFloat);
      model->enable_parallelism(GetParam().config(), world);
      EXPECT_LE(testing::absolute_error(model->forward(inputs), golden["output.proj_out"]), kOutputTolerance) << name;
    });
  }
  if (runs == 0) GTEST_SKIP() << "no golden file has sizes that this layout's plain mode takes";
}

at::Tensor sliced(const at::Tensor& whole, const std::map<std::string, TensorSlice>& slices, const std::string& name) {
  const auto found = slices.find(name);
  if (found == slices.end()) return whole;
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : found->second.ranges) parts.push_back(whole.slice(found->second.dim, begin, end));
  return at::cat(parts, found->second.dim);
}

// The norms of query and key see the heads of their rank only, so their gradients are partial over tp ranks too.
bool is_partial_over_heads(const std::string& name) { return name.find(".attn.norm_") != std::string::npos; }

TEST_P(FluxLayout, GradientsSummedOverContextRanksAreOneRanks) {
  const GoldenPart golden("golden/transformer_guided");
  auto whole = load(golden, at::kDouble);
  const auto layout = GetParam();
  // Even for all layouts, and with an odd number of tokens, of which some ranks have none.
  const std::pair<int64_t, int64_t> sizes[] = {{12, 12}, {7, 5}, {3, 1}};
  for (const auto& [image, text] : sizes) {
    const auto inputs = inputs_of(golden, at::kDouble, image, text);
    if (!accepts(inputs, whole->attention_heads())) continue;
    const auto expected = answer(whole, inputs);
    on_threads([&, what = std::to_string(image) + " + " + std::to_string(text)](World& world) {
      auto model = load(golden, at::kDouble);
      const auto config = layout.config();
      const auto mesh = config.mesh(world.rank(), world.size());
      const auto slices = tensor_parallel_slices(*model, model->tensor_parallel_plan(), layout.tp, mesh.index("tp"));
      model->enable_parallelism(config, world);
      const auto got = answer(model, inputs);
      EXPECT_LE(testing::relative_error(got.output, expected.output), kGradientTolerance) << what;
      const auto context = world.group_of(mesh.ranks_along({"ring", "ulysses"}));
      const auto tensor = world.group_of(mesh.ranks_along({"tp"}));
      for (const auto& [name, gradient] : expected.gradients) {
        const auto sum = got.gradients.at(name).clone(at::MemoryFormat::Contiguous);
        all_reduce(sum, context).wait();
        if (is_partial_over_heads(name)) all_reduce(sum, tensor).wait();
        EXPECT_LE(testing::relative_error(sum, sliced(gradient, slices, name)), kGradientTolerance)
            << name << " " << what;
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
