#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/models/apply.h>

#include "distributed/toy_model.h"
#include "support/attention_problem.h"
#include "support/failure.h"
#include "support/golden.h"
#include "support/on_threads.h"

namespace pardiff {
namespace {

using testing::absolute_error;
using testing::AttentionWay;
using testing::expect_failure;
using testing::make_toy;
using testing::on_threads;
using testing::toy_context_plan;
using testing::toy_inputs;
using testing::ToyInputs;
using testing::ToyModel;
using testing::ToyRun;

ContextParallelConfig config_of(const AttentionWay& way) {
  return {.ring_degree = way.ring,
          .ulysses_degree = way.ulysses,
          .rotate_method = way.rotate ? "alltoall" : "allgather",
          .ulysses_anything = way.mode->ulysses_anything,
          .ring_anything = way.mode->ring_anything};
}

at::Tensor summed(const at::Tensor& tensor, const ProcessGroup& group) {
  const auto sum = tensor.clone(at::MemoryFormat::Contiguous);
  all_reduce(sum, group).wait();
  return sum;
}

// The output is everybody's; gradients are sums over the context ranks.
void expect_one_ranks(const ToyRun& got, const ToyRun& expected, const ProcessGroup& context, const std::string& what) {
  EXPECT_LE(absolute_error(got.output, expected.output), 1e-12) << what;
  EXPECT_LE(absolute_error(summed(got.grad_hidden_states, context), expected.grad_hidden_states), 1e-11) << what;
  EXPECT_LE(absolute_error(summed(got.grad_context, context), expected.grad_context), 1e-11) << what;
  for (const auto& [name, gradient] : expected.gradients) {
    EXPECT_LE(testing::relative_error(summed(got.gradients.at(name), context), gradient), 1e-11) << name << " " << what;
  }
}

class ContextParallel : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ContextParallel, ::testing::Values(1, 2, 3, 4, 6), ::testing::PrintToStringParamName());

// Every row of the registry, with the backends of the CPU, on even lengths, uneven ones, and fewer tokens than ranks.
TEST_P(ContextParallel, GivesOneRanksOutputAndGradientsInEveryMode) {
  const int ranks = GetParam();
  const int64_t lengths[] = {24, 11, 2};
  std::map<int64_t, ToyRun> alone;
  for (const auto length : lengths) {
    auto model = make_toy(1);
    alone[length] = testing::run_toy(model, toy_inputs(length, 7));
  }
  on_threads(ranks, [&](World& world) {
    auto model = make_toy(1);
    for (const auto& way : testing::attention_ways(ranks)) {
      set_attention_backend(*model, way.backend);
      apply_context_parallel(*model, config_of(way), world, toy_context_plan());
      for (const auto length : lengths) {
        if (!way.accepts({.image = length, .text = 0, .heads = testing::kToyHeads})) continue;
        expect_one_ranks(testing::run_toy(model, toy_inputs(length, 7)), alone.at(length), world.group(),
                         way.to_string() + ", length " + std::to_string(length));
      }
      remove_context_parallel(*model);
    }
  });
}

TEST(ContextParallelPlan, ATypoListsTheValidNames) {
  on_threads(2, [](World& world) {
    auto model = make_toy(1);
    const ContextParallelConfig config{.ring_degree = 2};
    const auto refused = [&](const ContextParallelPlan& plan, const std::vector<std::string>& parts) {
      expect_failure<ConfigError>([&] { apply_context_parallel(*model, config, world, plan); }, parts);
    };
    const ContextParallelInput split{.split_dim = 1};
    const ContextParallelOutput gather{.gather_dim = 1};
    refused({{"proj_in", gather}}, {"'proj_in'", "not a submodule", "blocks, boundary, positions, proj_out"});
    refused({{"blocks.7.to_out", gather}}, {"'7'", "0, 1"});
    refused({{"blocks.*.to_outt", gather}}, {"'to_outt'", "to_out", "to_qkv"});
    refused({{"*.to_out", gather}}, {"'*'", "ModuleList"});
    refused({{"proj_out.*", gather}}, {"no ModuleList"});
    refused({{"blocks.*.*", gather}}, {"more than one '*'"});
    refused({{"", {{"hidden_state", split}}}}, {"'hidden_state'", "no such argument", "hidden_states, sides"});
    refused({{"proj_out", {{"x", split}}}}, {"'x'", "input"});
    refused({{"blocks", gather}}, {"'blocks'", "no Boundary"});
    refused({{"blocks.0", gather}}, {"'blocks.0'", "no Boundary"});
    refused({}, {"plan is empty"});
    refused({{"", {{0, split}}}}, {"by index without split_output"});
    refused({{"", {{"hidden_states", ContextParallelInput{.split_dim = 1, .split_output = true}}}}},
            {"split_output for 'hidden_states'"});
    refused({{"positions", {{-1, ContextParallelInput{.split_dim = 0, .split_output = true}}}}}, {"negative index"});
    // Two keys for one edge: one of them would be lost.
    refused({{"", {{"hidden_states", split}}}, {"boundary", {{"sides", {split, split}}}}}, {"'boundary'", "twice"});
    refused({{"blocks.*.to_out", gather}, {"blocks.0.to_out", gather}}, {"'blocks.0.to_out'", "twice"});
    for (const auto& attention : {model->blocks[0]->as<testing::ToyBlock>()->self_attention}) {
      EXPECT_FALSE(attention->sharing());
    }
    EXPECT_TRUE(world.counter().counts().empty());
    EXPECT_NO_THROW(apply_context_parallel(*model, config, world, toy_context_plan()));
  });
}

TEST(ContextParallelPlan, WrongShapesAreErrorsOnEveryRankBeforeAnythingIsSent) {
  on_threads(3, [](World& world) {
    auto model = make_toy(1);
    apply_context_parallel(*model, {.ring_degree = 3}, world, toy_context_plan());
    const auto refused = [&](ToyInputs inputs, const std::vector<std::string>& parts) {
      expect_failure<ShapeError>([&] { model->forward(inputs); }, parts);
    };
    auto two_dims = toy_inputs(6, 7), one_side = toy_inputs(6, 7);
    two_dims.sides[1] = two_dims.sides[1].squeeze(1);
    one_side.sides.pop_back();
    refused(two_dims, {"sides.1", "[6, 24]", "expects 3 dimensions"});
    refused(one_side, {"2 entries for 'sides'", "1 tensors"});
    refused(toy_inputs(7, 7), {"7 tokens", "3 ranks do not divide", "ring_anything"});
    EXPECT_TRUE(world.counter().counts().empty());
    EXPECT_EQ(model->forward(toy_inputs(6, 7)).size(1), 6);  // a rejected call can be corrected
  });
}

TEST(ContextParallelPlan, WrongDimensionsOfThePlanAreErrorsThatNameThem) {
  on_threads(2, [](World& world) {
    auto model = make_toy(1);
    const auto inputs = toy_inputs(6, 7);
    const ContextParallelConfig config{.ring_degree = 2};
    const auto refused = [&](const ModulePlan& changed, const char* module, const std::vector<std::string>& parts) {
      auto plan = toy_context_plan();
      plan.insert_or_assign(module, changed);
      apply_context_parallel(*model, config, world, plan);
      const auto counts = world.counter().counts();
      expect_failure<ShapeError>(
          [&] {
            model->boundary->enter("hidden_states", inputs.hidden_states);
            model->boundary->enter("sides", inputs.sides);
            model->positions->forward(6);
            model->proj_out->forward(inputs.hidden_states.narrow(1, 0, 3));
          },
          parts);
      EXPECT_TRUE(difference(world.counter().counts(), counts).empty());
      remove_context_parallel(*model);
    };
    const ContextParallelInput by_1{.split_dim = 1}, by_3{.split_dim = 3}, before{.split_dim = -4},
        two_dims{.split_dim = 1, .expected_dims = 2};
    refused({{"hidden_states", by_3}}, "", {"'hidden_states'", "3 dimensions", "names dimension 3"});
    refused({{"hidden_states", before}}, "", {"'hidden_states'", "names dimension -4"});
    refused({{"hidden_states", two_dims}}, "", {"'hidden_states'", "[2, 6, 24]", "expects 2 dimensions"});
    refused({{"hidden_states", {by_1, by_1}}}, "", {"'hidden_states'", "as a list", "one tensor"});
    refused({{"hidden_states", by_1}, {"sides", by_1}}, "", {"1 entries for 'sides'", "2 tensors"});
    refused({{1, ContextParallelInput{.split_dim = 0, .split_output = true}}}, "positions",
            {"output 1 of module 'positions'", "1 outputs"});
    refused(ContextParallelOutput{.gather_dim = 3}, "proj_out",
            {"output of module 'proj_out'", "3 dimensions", "names dimension 3"});
    refused(ContextParallelOutput{.gather_dim = 1, .expected_dims = 4}, "proj_out",
            {"output of module 'proj_out'", "[2, 3, 24]", "expects 4 dimensions"});
    refused({ContextParallelOutput{.gather_dim = 1}, ContextParallelOutput{.gather_dim = 1}}, "proj_out",
            {"gathers 2 outputs of module 'proj_out'", "has 1"});
    apply_context_parallel(*model, config, world, toy_context_plan());
    EXPECT_EQ(model->forward(inputs).size(1), 6);
  });
}

TEST(ContextParallelPlan, APlainModeNamesTheFlagThatLiftsItsRule) {
  const std::vector<std::pair<ContextParallelConfig, std::string>> configs = {
      {{.ring_degree = 4}, "ring_anything"},
      {{.ulysses_degree = 4}, "ulysses_anything"},
      {{.ring_degree = 2, .ulysses_degree = 2}, "ring_anything"}};
  for (const auto& [config, flag] : configs) {
    on_threads(4, [&, &wanted = config, &name = flag](World& world) {
      auto model = make_toy(1);
      apply_context_parallel(*model, wanted, world, toy_context_plan());
      expect_failure<ShapeError>([&] { model->forward(toy_inputs(9, 7)); }, {"9 tokens", "4 ranks", name});
    });
  }
  on_threads(3, [](World& world) {  // 8 heads on 3 ranks
    auto model = make_toy(1);
    apply_context_parallel(*model, {.ulysses_degree = 3}, world, toy_context_plan());
    expect_failure<ShapeError>([&] { model->forward(toy_inputs(6, 7)); },
                               {"8 attention heads", "ulysses_degree 3", "ulysses_anything"});
    EXPECT_TRUE(world.counter().counts().empty());
  });
}

TEST(ContextParallelPlan, CannotBeAppliedTwiceAndCanBeTakenBack) {
  on_threads(2, [](World& world) {
    auto model = make_toy(1);
    const auto before = model->forward(toy_inputs(11, 7));
    const ContextParallelConfig ring{.ring_degree = 2, .ring_anything = true};
    apply_context_parallel(*model, ring, world, toy_context_plan());
    expect_failure<ConfigError>([&] { apply_context_parallel(*model, ring, world, toy_context_plan()); },
                                {"already applied"});
    EXPECT_LE(absolute_error(model->forward(toy_inputs(11, 7)), before), 1e-12);
    remove_context_parallel(*model);
    const auto counts = world.counter().counts();
    EXPECT_TRUE(at::equal(model->forward(toy_inputs(11, 7)), before));
    EXPECT_TRUE(difference(world.counter().counts(), counts).empty());
    EXPECT_TRUE(model->boundary->layout("hidden_states").is_whole());
    apply_context_parallel(*model, {.ulysses_degree = 2, .ulysses_anything = true}, world, toy_context_plan());
    EXPECT_LE(absolute_error(model->forward(toy_inputs(11, 7)), before), 1e-12);
  });
}

TEST(ContextParallelPlan, AnAttentionBackendThatCannotIsRefusedAndTheCallCanBeRepeated) {
  on_threads(2, [](World& world) {
    auto model = make_toy(1);
    const auto alone = model->forward(toy_inputs(4, 7));
    model->blocks[1]->as<testing::ToyBlock>()->cross_attention->set_backend("_native_flash");
    expect_failure<ConfigError>([&] { apply_context_parallel(*model, {.ring_degree = 2}, world, toy_context_plan()); },
                                {"'_native_flash'", "mode 'ring'", "native, math"});
    expect_failure<ConfigError>([&] { set_attention_backend(*model, "_native_cudnn"); },
                                {"_native_cudnn", "native, math"});
    set_attention_backend(*model, "math");
    apply_context_parallel(*model, {.ring_degree = 2}, world, toy_context_plan());
    expect_failure<ConfigError>([&] { set_attention_backend(*model, "_native_cudnn"); },
                                {"mode 'ring'", "native, math"});
    EXPECT_LE(absolute_error(model->forward(toy_inputs(4, 7)), alone), 1e-12);
  });
}

TEST(ContextParallelPlan, RanksThatDisagreeAreToldSo) {
  expect_failure<CommError>(
      [] {
        on_threads(4, [](World& world) {
          auto model = make_toy(1);
          const bool other = world.rank() == 3;
          apply_context_parallel(*model, {.ring_degree = 2, .ulysses_degree = 2, .ring_anything = other}, world,
                                 toy_context_plan());
        });
      },
      {"disagree on the context-parallel configuration", "rank 3"});
}

TEST(ContextParallelPlan, ADegreeOfOneChangesNothing) {
  on_threads(1, [](World& world) {
    auto model = make_toy(1);
    const auto before = model->forward(toy_inputs(5, 7));
    apply_context_parallel(*model, {.ring_degree = 1}, world, toy_context_plan());
    EXPECT_TRUE(at::equal(model->forward(toy_inputs(5, 7)), before));
  });
}

TEST(ContextParallelModels, OfOneProcessDoNotMeet) {
  on_threads(4, [](World& world) {
    auto first = make_toy(1), second = make_toy(2), third = make_toy(3);
    const auto inputs = toy_inputs(10, 7), others = toy_inputs(7, 8);
    const auto first_alone = first->forward(inputs), second_alone = second->forward(others),
               third_alone = third->forward(inputs);
    apply_context_parallel(*first, {.ring_degree = 2, .ulysses_degree = 2, .ring_anything = true}, world,
                           toy_context_plan());
    apply_context_parallel(*second, {.ulysses_degree = 4, .ulysses_anything = true}, world, toy_context_plan());
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_LE(absolute_error(first->forward(inputs), first_alone), 1e-12);
      EXPECT_LE(absolute_error(second->forward(others), second_alone), 1e-12);
      EXPECT_TRUE(at::equal(third->forward(inputs), third_alone));
      EXPECT_EQ(first->boundary->layout("hidden_states").length(), 10);
      EXPECT_EQ(second->boundary->layout("hidden_states").length(), 7);
    }
  });
}

TEST(ContextParallelMesh, MayHaveFurtherAxesAndAnyOrder) {
  auto whole = make_toy(1);
  const ToyRun alone[] = {testing::run_toy(whole, toy_inputs(10, 7)), testing::run_toy(whole, toy_inputs(11, 8))};
  const std::vector<Mesh::Axes> meshes = {{{"dp", 2}, {"ring", 2}, {"ulysses", 2}},
                                          {{"dp", 2}, {"ulysses", 2}, {"ring", 2}},
                                          {{"ring", 2}, {"dp", 2}, {"ulysses", 2}},
                                          {{"ulysses", 2}, {"ring", 2}, {"dp", 2}}};
  for (const auto& axes : meshes) {
    on_threads(8, [&](World& world) {
      const Mesh mesh(world.rank(), 8, axes);
      auto model = make_toy(1);
      apply_context_parallel(
          *model,
          {.ring_degree = 2, .ulysses_degree = 2, .mesh = mesh, .ulysses_anything = true, .ring_anything = true}, world,
          toy_context_plan());
      const int dp = mesh.index("dp");  // each data-parallel group has its own work
      const auto context = world.group_of(mesh.ranks_along({"ring", "ulysses"}));
      expect_one_ranks(testing::run_toy(model, dp == 0 ? toy_inputs(10, 7) : toy_inputs(11, 8)), alone[dp], context,
                       mesh.to_string());
    });
  }
}

TEST(KeepSplit, PassesSharesThroughUntilItEnds) {
  on_threads(3, [](World& world) {
    auto model = make_toy(1);
    const auto inputs = toy_inputs(8, 7);
    const auto alone = model->forward(inputs);
    expect_failure<ConfigError>([&] { KeepSplit scope(*model, {}); }, {"not context parallel"});
    apply_context_parallel(*model, {.ring_degree = 3, .ring_anything = true}, world, toy_context_plan());
    const auto layout = SequenceLayout::split(8, 3);
    const auto [begin, end] = testing::share_of(8, 3, world.rank());
    {
      const KeepSplit scope(*model, {{"hidden_states", layout}});
      auto shares = inputs;
      shares.hidden_states = inputs.hidden_states.slice(1, begin, end);
      shares.sides = {inputs.sides[0].slice(1, begin, end), inputs.sides[1].slice(0, begin, end)};
      const at::NoGradGuard no_grad;
      // The table is not split here, so give it as many rows as there are tokens: it must only not be cut again.
      model->positions->table.zero_();
      EXPECT_EQ(model->boundary->layout("hidden_states"), layout);
      EXPECT_EQ(model->forward(shares).size(1), end - begin);
    }
    EXPECT_EQ(model->forward(inputs).size(1), 8);
  });
}

// A module whose outputs are gathered as a list, one of them like another input than the first.
struct TwoOutputsImpl : torch::nn::Module {
  TwoOutputsImpl()
      : boundary(register_module("boundary", Boundary())), attention(register_module("attention", Attention())) {}
  std::vector<at::Tensor> forward(const at::Tensor& longer, const at::Tensor& shorter) {
    const auto a = boundary->enter("longer", longer), b = boundary->enter("shorter", shorter);
    seen = {boundary->layout("longer"), boundary->layout("shorter")};
    return boundary->leave(std::vector<at::Tensor>{a, b});
  }
  std::vector<SequenceLayout> seen;
  Boundary boundary;
  Attention attention;
};
TORCH_MODULE(TwoOutputs);

// The root's edge has inputs, so its outputs are those of a parent here.
struct OuterImpl : torch::nn::Module {
  OuterImpl() : boundary(register_module("boundary", Boundary())), inner(register_module("inner", TwoOutputs())) {}
  std::vector<at::Tensor> forward(const at::Tensor& longer, const at::Tensor& shorter) {
    return boundary->leave(inner->forward(longer, shorter));
  }
  Boundary boundary;
  TwoOutputs inner;
};
TORCH_MODULE(Outer);

TEST(ContextParallelPlan, GathersAListOfOutputsEachLikeItsInput) {
  on_threads(3, [](World& world) {
    Outer model;
    const ContextParallelInput split{.split_dim = 0};
    const ContextParallelPlan plan = {
        {"inner", {{"longer", split}, {"shorter", split}}},
        {"",
         {ContextParallelOutput{.gather_dim = 0}, ContextParallelOutput{.gather_dim = 0, .like = "inner.shorter"}}}};
    apply_context_parallel(*model, {.ring_degree = 3, .ring_anything = true}, world, plan);
    const auto longer = at::arange(10).view({10, 1}), shorter = at::arange(4).view({4, 1});
    const auto outputs = model->forward(longer, shorter);
    EXPECT_TRUE(at::equal(outputs[0], longer));
    EXPECT_TRUE(at::equal(outputs[1], shorter));
    EXPECT_EQ(model->inner->seen[0].to_string(), "4+3+3");
    EXPECT_EQ(model->inner->seen[1].to_string(), "2+1+1");

    // An optional argument that is left out has no layout in this call, not that of the last one.
    expect_failure<ConfigError>([&] { model->forward(longer, {}); }, {"inner.shorter", "not been split in this call"});
    EXPECT_TRUE(model->inner->seen[1].is_whole());
    EXPECT_EQ(model->inner->seen[0].length(), 10);

    // An output that does not follow its input's shares.
    remove_context_parallel(*model);
    const ContextParallelPlan wrong = {
        {"inner", {{"longer", split}, {"shorter", split}}},
        {"", {ContextParallelOutput{.gather_dim = 0}, ContextParallelOutput{.gather_dim = 0}}}};
    apply_context_parallel(*model, {.ring_degree = 3, .ring_anything = true}, world, wrong);
    const auto before = world.counter().counts();
    EXPECT_THROW(model->forward(shorter, longer), ShapeError);
    EXPECT_TRUE(difference(world.counter().counts(), before).empty());
  });
}

// Only outputs are split: the gather follows the first of them.
struct TableImpl : torch::nn::Module {
  TableImpl() : boundary(register_module("boundary", Boundary())) {}
  at::Tensor forward(const at::Tensor& x) { return boundary->leave(x); }
  Boundary boundary;
};
TORCH_MODULE(Table);
struct TableUserImpl : torch::nn::Module {
  TableUserImpl()
      : boundary(register_module("boundary", Boundary())),
        table(register_module("table", Table())),
        attention(register_module("attention", Attention())) {}
  at::Tensor forward(const at::Tensor& x) { return boundary->leave(table->forward(x)); }
  Boundary boundary;
  Table table;
  Attention attention;
};
TORCH_MODULE(TableUser);

TEST(ContextParallelPlan, AGatherFollowsASplitOutputToo) {
  on_threads(3, [](World& world) {
    TableUser model;
    const ContextParallelPlan plan = {{"table", {{0, ContextParallelInput{.split_dim = 0, .split_output = true}}}},
                                      {"", ContextParallelOutput{.gather_dim = 0}}};
    apply_context_parallel(*model, {.ulysses_degree = 3, .ulysses_anything = true}, world, plan);
    const auto x = at::arange(7).view({7, 1});
    EXPECT_TRUE(at::equal(model->forward(x), x));
    EXPECT_EQ(model->table->forward(x).size(0), world.rank() == 0 ? 3 : 2);
  });
}

}  // namespace
}  // namespace pardiff
