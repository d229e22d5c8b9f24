#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/models/apply.h>

#include <mutex>

#include "distributed/toy_model.h"
#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"
#include "support/plain_attention.h"

namespace pardiff {
namespace {

using testing::absolute_error;
using testing::expect_failure;
using testing::make_toy;
using testing::on_threads;
using testing::random_normal;
using testing::relative_error;
using testing::toy_inputs;
using testing::toy_tensor_plan;
using testing::ToyModel;
using testing::ToyRun;

at::Tensor sliced(const at::Tensor& whole, const std::map<std::string, TensorSlice>& slices, const std::string& name) {
  const auto found = slices.find(name);
  if (found == slices.end()) return whole;
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : found->second.ranges) parts.push_back(whole.slice(found->second.dim, begin, end));
  return at::cat(parts, found->second.dim);
}

TEST(TensorParallel, GivesOneRanksOutputAndGradients) {
  const auto inputs = toy_inputs(7, 5);
  auto whole = make_toy(1);
  const auto alone = testing::run_toy(whole, inputs);
  for (const int degree : {2, 4}) {
    on_threads(degree, [&](World& world) {
      auto model = make_toy(1);
      const auto slices = tensor_parallel_slices(*model, toy_tensor_plan(), degree, world.rank());
      apply_tensor_parallel(*model, {.tp_degree = degree}, world, toy_tensor_plan());
      const auto run = testing::run_toy(model, inputs);
      EXPECT_LE(absolute_error(run.output, alone.output), 1e-12);
      // Replicated inputs and parameters have their whole gradient on every rank, sharded ones that of the slice.
      EXPECT_LE(absolute_error(run.grad_hidden_states, alone.grad_hidden_states), 1e-12);
      EXPECT_LE(absolute_error(run.grad_context, alone.grad_context), 1e-12);
      for (const auto& [name, gradient] : alone.gradients) {
        EXPECT_LE(relative_error(run.gradients.at(name), sliced(gradient, slices, name)), 1e-12) << name;
      }
    });
  }
}

TEST(TensorParallel, KeepsOnlyItsSliceOfEveryPlannedWeight) {
  const auto whole = make_toy(1)->named_parameters();
  on_threads(4, [&](World& world) {
    auto model = make_toy(1);
    const auto slices = tensor_parallel_slices(*model, toy_tensor_plan(), 4, world.rank());
    EXPECT_EQ(slices.size(), 2u * (7 + 4));  // two blocks of seven weights, four of them colwise with a bias
    apply_tensor_parallel(*model, {.tp_degree = 4}, world, toy_tensor_plan());
    for (const auto& parameter : model->named_parameters()) {
      const auto expected = sliced(whole[parameter.key()], slices, parameter.key());
      EXPECT_TRUE(at::equal(parameter.value(), expected)) << parameter.key();
      EXPECT_TRUE(parameter.value().requires_grad()) << parameter.key();
      // No view that keeps the whole weight alive.
      EXPECT_EQ(parameter.value().storage().nbytes(), parameter.value().nbytes()) << parameter.key();
    }
  });
}

TEST(TensorParallel, StartsFromRank0sWeights) {
  auto first = make_toy(10);
  const auto expected = first->forward(toy_inputs(5, 5));
  on_threads(4, [&](World& world) {
    auto model = make_toy(10 + static_cast<uint64_t>(world.rank()) * 1000);
    apply_tensor_parallel(*model, {.tp_degree = 4}, world, toy_tensor_plan());
    EXPECT_LE(absolute_error(model->forward(toy_inputs(5, 5)), expected), 1e-12);
  });
}

TEST(TensorParallel, TakesWeightsThatAreAlreadySharded) {
  auto whole = make_toy(1);
  const auto expected = whole->forward(toy_inputs(5, 5));
  on_threads(2, [&](World& world) {
    auto model = make_toy(1);
    const auto slices = tensor_parallel_slices(*model, toy_tensor_plan(), 2, world.rank());
    for (auto& parameter : model->named_parameters()) {
      parameter.value().set_data(sliced(parameter.value().detach(), slices, parameter.key()));
    }
    apply_tensor_parallel(*model, {.tp_degree = 2}, world, toy_tensor_plan(), /*weights_already_sharded=*/true);
    EXPECT_TRUE(world.counter().counts().empty());
    EXPECT_LE(absolute_error(model->forward(toy_inputs(5, 5)), expected), 1e-12);
  });
}

TEST(TensorParallel, ReducesOncePerRowwiseLayer) {
  on_threads(4, [](World& world) {
    auto model = make_toy(1);
    apply_tensor_parallel(*model, {.tp_degree = 4}, world, toy_tensor_plan());
    const auto before = world.counter().counts();
    {
      const at::NoGradGuard no_grad;
      model->forward(toy_inputs(5, 5));
    }
    const auto counts = difference(world.counter().counts(), before);
    EXPECT_EQ(counts.size(), 1u);
    EXPECT_EQ(counts.at("all_reduce").calls, 2 * 3);
    const int64_t output = 2 * 5 * testing::kToyDim * 8;  // bytes of one reduction
    EXPECT_EQ(counts.at("all_reduce").bytes_sent, 2 * 3 * 2 * output * 3 / 4);
  });
}

struct OneLinearImpl : torch::nn::Module {
  OneLinearImpl(int64_t in_features, int64_t out_features, bool bias)
      : layer(register_module("layer",
                              nn::Linear(in_features, out_features,
                                         nn::LinearOptions{.bias = bias, .parameters = {.dtype = at::kDouble}}))) {}
  nn::Linear layer;
};
TORCH_MODULE(OneLinear);

TEST(TensorParallel, AddsTheBiasOnceAfterTheReduction) {
  on_threads(4, [](World& world) {
    OneLinear model(8, 3, true);
    {
      const at::NoGradGuard no_grad;
      model->layer->weight.zero_();
      model->layer->bias.copy_(at::tensor({1.0, 2.0, 3.0}, at::kDouble));
    }
    apply_tensor_parallel(*model, {.tp_degree = 4}, world, {{"layer", "rowwise"}});
    const auto y = model->layer->forward(at::ones({1, 2}, at::kDouble));  // this rank's share of the input
    EXPECT_TRUE(at::equal(y, at::tensor({1.0, 2.0, 3.0}, at::kDouble).unsqueeze(0)));
    y.sum().backward();
    EXPECT_TRUE(at::equal(model->layer->bias.grad(), at::ones({3}, at::kDouble)));
  });
}

TEST(TensorParallel, WorksWithoutABias) {
  const auto x = random_normal({3, 8}, 1);
  on_threads(2, [&](World& world) {
    OneLinear column(8, 6, false), row(8, 6, false);
    apply_tensor_parallel(*column, {.tp_degree = 2}, world, {{"layer", "colwise"}});
    EXPECT_EQ(column->layer->forward(x).size(1), 3);
    const auto whole = row->layer->weight.detach().clone();
    broadcast(whole, 0, world.group()).wait();
    apply_tensor_parallel(*row, {.tp_degree = 2}, world, {{"layer", "rowwise"}});
    const auto y = row->layer->forward(x.slice(1, 4 * world.rank(), 4 * world.rank() + 4));
    EXPECT_LE(absolute_error(y, x.matmul(whole.t())), 1e-12);
  });
}

TEST(TensorParallel, RefusesBeforeAWeightIsTouchedAndCanBeRepeated) {
  on_threads(2, [](World& world) {
    auto model = make_toy(1);
    const auto untouched = make_toy(1)->named_parameters();
    const auto refused = [&](const TensorParallelPlan& plan, const TensorParallelConfig& config,
                             const std::vector<std::string>& parts) {
      expect_failure<ConfigError>([&] { apply_tensor_parallel(*model, config, world, plan); }, parts);
      for (const auto& parameter : model->named_parameters()) {
        EXPECT_TRUE(at::equal(parameter.value(), untouched[parameter.key()])) << parameter.key();
      }
      EXPECT_EQ(model->proj_out->sharding.style, nn::ShardStyle::kWhole);
      EXPECT_TRUE(world.counter().counts().empty());
    };
    const TensorParallelConfig two{.tp_degree = 2};
    refused({}, two, {"no tensor-parallel plan"});
    refused({{"proj_in", "colwise"}}, two, {"'proj_in'", "proj_out"});
    refused({{"blocks.*.to_qkv", "colwise"}, {"blocks.*.to_o", "rowwise"}}, two, {"'to_o'", "to_out"});
    refused({{"blocks.*", "colwise"}}, two, {"only pardiff::nn::Linear"});
    refused({{"positions.*", "colwise"}}, two, {"ModuleList"});
    refused({{"blocks.*.to_qkv", TensorParallelStyle::packed_colwise({1, 1, 5})}}, two, {"72", "1, 1, 5", "sum 7"});
    // The first entry could be sharded, the second cannot: neither is.
    refused({{"blocks.*.to_out", "rowwise"}, {"proj_out", TensorParallelStyle::packed_rowwise({1, 7})}}, two,
            {"'proj_out.weight'", "size 3", "dimension 1", "by 2"});
    refused({{"proj_out", "colwise"}}, {.tp_degree = 3}, {"multiply to 3", "2 ranks"});
    refused({{"blocks.*.to_out", "rowwise"}, {"blocks.0.to_out", "colwise"}}, two, {"'blocks.0.to_out'", "twice"});
    apply_tensor_parallel(*model, two, world, toy_tensor_plan());
    EXPECT_LE(absolute_error(model->forward(toy_inputs(5, 5)), make_toy(1)->forward(toy_inputs(5, 5))), 1e-12);
    expect_failure<ConfigError>([&] { apply_tensor_parallel(*model, two, world, toy_tensor_plan()); },
                                {"already sharded"});
  });
}

// Packed blocks go back where they were, and a trained layer's gradient of a slice does not stay behind.
TEST(TensorParallel, IsTakenBack) {
  on_threads(4, [](World& world) {
    auto model = make_toy(1);
    const auto untouched = make_toy(1)->named_parameters();
    const auto before = testing::run_toy(model, toy_inputs(5, 5));
    apply_tensor_parallel(*model, {.tp_degree = 4}, world, toy_tensor_plan());
    testing::run_toy(model, toy_inputs(5, 5));
    remove_tensor_parallel(*model);
    for (const auto& parameter : model->named_parameters()) {
      EXPECT_TRUE(at::equal(parameter.value(), untouched[parameter.key()])) << parameter.key();
    }
    const auto counts = world.counter().counts();
    const auto after = testing::run_toy(model, toy_inputs(5, 5));
    EXPECT_TRUE(difference(world.counter().counts(), counts).empty());
    EXPECT_TRUE(at::equal(after.output, before.output));
    for (const auto& [name, gradient] : before.gradients) {
      EXPECT_TRUE(at::equal(after.gradients.at(name), gradient)) << name;
    }
  });
}

// The tp axis of a mesh gives the degree; a further axis keeps groups apart, each with work of its own.
TEST(TensorParallel, TakesItsDegreeFromAMeshWithFurtherAxes) {
  const at::Tensor alone[] = {make_toy(1)->forward(toy_inputs(5, 5)), make_toy(1)->forward(toy_inputs(6, 8))};
  const std::vector<Mesh::Axes> meshes = {{{"replica", 2}, {"tp", 2}}, {{"tp", 2}, {"replica", 2}}};
  for (const auto& axes : meshes) {
    on_threads(4, [&](World& world) {
      const at::NoGradGuard no_grad;
      const Mesh mesh(world.rank(), 4, axes);
      auto model = make_toy(1);
      apply_tensor_parallel(*model, {.mesh = mesh}, world, toy_tensor_plan());
      EXPECT_EQ(model->blocks[0]->as<testing::ToyBlock>()->widen->sharding.group.size(), 2);
      const int replica = mesh.index("replica");
      const auto output = model->forward(replica == 0 ? toy_inputs(5, 5) : toy_inputs(6, 8));
      EXPECT_LE(absolute_error(output, alone[replica]), 1e-12) << mesh.to_string();
    });
  }
}

at::Tensor summed(const at::Tensor& tensor, const ProcessGroup& group) {
  const auto sum = tensor.clone(at::MemoryFormat::Contiguous);
  all_reduce(sum, group).wait();
  return sum;
}

struct Mixed {
  int ring, ulysses, tp;
};
class TensorWithContextParallel : public ::testing::TestWithParam<Mixed> {};
INSTANTIATE_TEST_SUITE_P(Layouts, TensorWithContextParallel,
                         ::testing::Values(Mixed{2, 1, 2}, Mixed{1, 2, 2}, Mixed{3, 1, 2}, Mixed{1, 3, 2},
                                           Mixed{2, 2, 2}, Mixed{2, 1, 4}, Mixed{1, 2, 4}),
                         [](const auto& parameter) {
                           return "Ring" + std::to_string(parameter.param.ring) + "Ulysses" +
                                  std::to_string(parameter.param.ulysses) + "Tp" + std::to_string(parameter.param.tp);
                         });

TEST_P(TensorWithContextParallel, GivesOneRanksOutputAndGradients) {
  const auto [ring, ulysses, tp] = GetParam();
  auto whole = make_toy(1);
  const ToyRun alone[] = {testing::run_toy(whole, toy_inputs(11, 5)), testing::run_toy(whole, toy_inputs(12, 5))};
  // The own order of axes, and another.
  const std::vector<Mesh::Axes> meshes = {{{"ring", ring}, {"ulysses", ulysses}, {"tp", tp}},
                                          {{"tp", tp}, {"ulysses", ulysses}, {"ring", ring}}};
  for (const auto& axes : meshes) {
    on_threads(ring * ulysses * tp, [&, degrees = GetParam()](World& world) {
      const Mesh mesh(world.rank(), world.size(), axes);
      auto model = make_toy(1);
      const auto slices = tensor_parallel_slices(*model, toy_tensor_plan(), degrees.tp, mesh.index("tp"));
      const ContextParallelConfig config{.ring_degree = degrees.ring,
                                         .ulysses_degree = degrees.ulysses,
                                         .ulysses_anything = degrees.ulysses > 1,
                                         .ring_anything = degrees.ring > 1};
      apply_context_parallel(*model, config, world, mesh, testing::toy_context_plan());
      apply_tensor_parallel(*model, {.tp_degree = degrees.tp}, world, mesh, toy_tensor_plan());
      const auto context = world.group_of(mesh.ranks_along({"ring", "ulysses"}));
      for (int length = 0; length < 2; ++length) {
        const auto& expected = alone[length];
        const auto run = testing::run_toy(model, toy_inputs(11 + length, 5));
        EXPECT_LE(absolute_error(run.output, expected.output), 1e-12);
        EXPECT_LE(absolute_error(summed(run.grad_hidden_states, context), expected.grad_hidden_states), 1e-11);
        EXPECT_LE(absolute_error(summed(run.grad_context, context), expected.grad_context), 1e-11);
        for (const auto& [name, gradient] : expected.gradients) {
          const auto got = summed(run.gradients.at(name), context);
          EXPECT_LE(relative_error(got, sliced(gradient, slices, name)), 1e-11) << name;
        }
      }
    });
  }
}

}  // namespace
}  // namespace pardiff
