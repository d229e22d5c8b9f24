#include <pardiff/comm/world.h>
#include <pardiff/core/error.h>
#include <pardiff/plan/planner.h>

#include <limits>
#include <set>

#include "support/failure.h"
#include "support/temporary_folder.h"

namespace pardiff::plan {
namespace {

using pardiff::testing::expect_failure;
using pardiff::testing::TemporaryFolder;

// 8 heads of 16, 3 double and 2 single blocks.
Work small_work() {
  Work work{.other_parameters = 1000, .height = 128, .width = 128, .text_tokens = 16, .dtype = at::kFloat};
  work.transformer = {.in_channels = 16,
                      .num_layers = 3,
                      .num_single_layers = 2,
                      .attention_head_dim = 16,
                      .num_attention_heads = 8,
                      .joint_attention_dim = 32,
                      .pooled_projection_dim = 32,
                      .axes_dims_rope = {4, 6, 6}};
  work.vae.block_out_channels = {16, 16, 16, 16};
  return work;
}

// Computes in no time and sends a byte a second.
Machine only_links() {
  constexpr double kAtOnce = 1e30;
  return {.name = "links",
          .half_flops = kAtOnce,
          .single_flops = kAtOnce,
          .memory_bytes = kAtOnce,
          .memory_bytes_per_s = kAtOnce,
          .link = {.bytes_per_s = 1, .latency_s = 0},
          .network = {.bytes_per_s = 1, .latency_s = 0}};
}

Machine ordinary() {
  return {.name = "ordinary",
          .half_flops = 100e12,
          .single_flops = 50e12,
          .memory_bytes = 48e9,
          .memory_bytes_per_s = 800e9,
          .link = {.bytes_per_s = 20e9, .latency_s = 40e-6},
          .network = {.bytes_per_s = 5e9, .latency_s = 80e-6},
          .launch_s = 5e-6};
}

ParallelConfig context(int ring, int ulysses) {
  return {.context_parallel_config = ContextParallelConfig{.ring_degree = ring, .ulysses_degree = ulysses}};
}

TEST(Planner, EveryLayoutHasAllRanksAndAppearsOnce) {
  for (const int ranks : {1, 2, 4, 6}) {
    std::set<std::string> seen;
    for (const auto& layout : plan(small_work(), ordinary(), ranks)) {
      EXPECT_EQ(layout.config.ranks(), ranks);
      EXPECT_TRUE(seen.insert(description(layout.config)).second) << description(layout.config);
    }
    EXPECT_GE(seen.size(), ranks == 1 ? 1u : 6u);
  }
}

TEST(Planner, FastestIsFirstAndWhatCannotRunComesLast) {
  const auto layouts = plan(small_work(), ordinary(), 4);
  for (size_t i = 1; i < layouts.size(); ++i) {
    EXPECT_GE(layouts[i - 1].is_possible(), layouts[i].is_possible());
    if (layouts[i].is_possible()) {
      EXPECT_LE(layouts[i - 1].step.total(), layouts[i].step.total());
    }
  }
  EXPECT_TRUE(layouts.front().is_possible());
}

// The verdict is that of a model on ranks that exist.
TEST(Planner, VerdictsAreThoseOfTheModelOnRealRanks) {
  const auto work = small_work();
  for (const auto& layout : plan(work, ordinary(), 4)) {
    run_as_threads(4, [&](World& world) {
      FluxTransformer2DModel model(work.transformer);
      std::string refusal;
      try {
        model->enable_parallelism(layout.config, world);
      } catch (const ConfigError& error) {
        refusal = error.what();
      }
      // dp needs pictures and cfg two passes, which a model alone does not know.
      if (layout.config.dp_degree * layout.config.cfg_degree == 1) {
        EXPECT_EQ(refusal, layout.refusal) << description(layout.config);
      }
    });
  }
}

TEST(Planner, RefusesInTheWordsOfTheChecks) {
  const auto work = small_work();
  EXPECT_NE(why_refused(work, {.dp_degree = 4}, 4).find("dp_degree is 4, and there is 1 picture"), std::string::npos);
  EXPECT_NE(why_refused(work, {.cfg_degree = 2}, 2).find("true guidance is off"), std::string::npos);
  EXPECT_NE(why_refused(work, context(3, 1), 3).find("64 tokens cannot be cut equally among 3"), std::string::npos);
  EXPECT_NE(why_refused(work, context(1, 16), 16).find("8 attention heads"), std::string::npos);
  const ParallelConfig tp{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 3}};
  EXPECT_NE(why_refused(work, tp, 3).find("tp_degree 3 must divide the 8 attention heads"), std::string::npos);
  EXPECT_EQ(why_refused(work, context(2, 2), 4), "");
  EXPECT_NE(why_refused(work, context(2, 2), 8).find("multiply to 4"), std::string::npos);
}

TEST(Planner, OffersTheAnythingFormWhereSizesDoNotDivide) {
  bool offered = false;
  for (const auto& layout : plan(small_work(), ordinary(), 3)) {
    const auto& own = layout.config.context_parallel_config;
    if (own && own->ulysses_anything && layout.is_possible()) offered = true;
    if (own && own->ulysses() == 3 && !own->ulysses_anything) {
      EXPECT_FALSE(layout.is_possible());
    }
  }
  EXPECT_TRUE(offered);
}

// Bytes of one layer by the formulas of docs/algorithms.md, V being one of Q, K, V, O over the whole sequence.
TEST(Planner, ExchangesTheBytesOfTheAlgorithms) {
  const auto work = small_work();
  const double v = (64 + 16) * 128 * 4, layers = 5;
  const auto seconds = [&](const ParallelConfig& config) {
    return step_time(work, config, only_links(), config.ranks()).exchange;
  };
  EXPECT_NEAR(seconds(context(1, 4)), layers * 4 * v * 3 / 16, 1);
  EXPECT_NEAR(seconds(context(4, 1)), layers * 2 * v * 3 / 4, 1);
  EXPECT_NEAR(seconds(context(2, 2)), layers * v / 4 * (4 * 0.5 + 2), 1);
  const ParallelConfig tp{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
  const double modulations = (3 * 12 + 2 * 3 + 2) * 128 * 4 / 2.0;
  EXPECT_NEAR(seconds(tp), (3 * 2 + 2) * v + modulations, 1);  // 2 V (N - 1) / N with N = 2
  EXPECT_EQ(seconds({}), 0);
}

TEST(Planner, ARingHidesWhatItsAttentionCovers) {
  auto work = small_work();
  work.height = work.width = 2048;
  work.text_tokens = 512;
  auto machine = ordinary();
  machine.link.latency_s = 0;
  machine.memory_bytes_per_s = 1e30;
  machine.link.bytes_per_s = 1e12;  // a hop takes less than a block's attention
  EXPECT_NEAR(step_time(work, context(4, 1), machine, 4).exchange, 0, 1e-9);
  machine.overlap = 0;
  EXPECT_GT(step_time(work, context(4, 1), machine, 4).exchange, 1e-6);
  machine.overlap = 1;
  EXPECT_GT(step_time(work, context(4, 1), machine, 4, Profile::kReference).exchange, 1e-6) << "the reference waits";
}

TEST(Planner, HostsThatAreSlowerThanTheirDevicesShow) {
  auto machine = ordinary();
  machine.launch_s = 1;
  const auto step = step_time(small_work(), {}, machine, 1);
  EXPECT_GT(step.host, 100);
  machine.asynchronous = false;
  const auto same = step_time(small_work(), {}, machine, 1);
  EXPECT_EQ(same.host, 0);
  EXPECT_GT(same.compute, step.compute + 100);
}

TEST(Planner, SharedAndCutWeightsTakeLessMemory) {
  auto work = small_work();
  work.pictures = 4;
  const double whole = rank_memory(work, {}, 1).weights;
  const ParallelConfig tp{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 4}};
  EXPECT_LT(rank_memory(work, tp, 4).weights, 0.35 * whole);
  auto shared = context(2, 2);
  EXPECT_EQ(rank_memory(work, shared, 4).weights, whole);
  shared.shard_weights_over = {"ring", "ulysses"};
  EXPECT_LT(rank_memory(work, shared, 4).weights, whole);
  EXPECT_EQ(rank_memory(work, {.fsdp_degree = 4}, 4).weights, rank_memory(work, shared, 4).weights);
}

TEST(Planner, NamesTheMemoryThatLacks) {
  auto machine = ordinary();
  machine.memory_bytes = 1e6;
  const auto layouts = plan(small_work(), machine, 1);
  ASSERT_EQ(layouts.size(), 1u);
  EXPECT_FALSE(layouts[0].is_possible());
  EXPECT_NE(layouts[0].refusal.find("GB"), std::string::npos);
  EXPECT_GT(layouts[0].step.total(), 0) << "still predicted";
}

TEST(Planner, PicturesOfDifferentGroupsCostOneGroupsTime) {
  auto work = small_work();
  work.pictures = 4;
  const auto machine = ordinary();
  const double alone = step_time(work, {}, machine, 1).compute;
  EXPECT_LT(step_time(work, {.dp_degree = 4}, machine, 4).compute, 0.7 * alone);
  work.true_guidance = true;
  EXPECT_NEAR(step_time(work, {}, machine, 1).compute, 2 * alone, 1e-9);
  EXPECT_NEAR(step_time(work, {.cfg_degree = 2}, machine, 2).compute, alone, 1e-9);
}

TEST(Planner, FitsOneNumber) {
  const auto work = small_work();
  const double seconds = step_time(work, context(1, 4), ordinary(), 4, Profile::kReference).total();
  auto slower = ordinary();
  slower.link.bytes_per_s /= 1.5;
  slower.launch_s = 1e-9;
  auto machine = ordinary();
  machine.launch_s = 1e-9;
  const double target = step_time(work, context(1, 4), slower, 4, Profile::kReference).total();
  const auto by_link = fitted(machine, work, context(1, 4), 4, target, Profile::kReference);
  EXPECT_NEAR(by_link.link.bytes_per_s / slower.link.bytes_per_s, 1, 1e-3);
  const auto by_host = fitted(machine, work, context(1, 4), 4, 100 * seconds, Profile::kReference);
  EXPECT_EQ(by_host.link.bytes_per_s, machine.link.bytes_per_s);
  EXPECT_NEAR(step_time(work, context(1, 4), by_host, 4, Profile::kReference).total(), 100 * seconds, 1e-6);
  expect_failure<ConfigError>([&] { fitted(machine, work, context(1, 4), 4, 1e-12, Profile::kReference); },
                              {"neither the link nor the host", "ulysses 4"});
}

TEST(Machines, AreReadAsTheyWereWritten) {
  const TemporaryFolder folder;
  auto machine = ordinary();
  machine.operations["send"] = {.bytes_per_s = 3e9, .latency_s = 7e-6};
  machine.asynchronous = false;
  testing::put(folder / "kinds.json", machine.to_json());
  const auto read = machines_in(folder / "kinds.json");
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].to_json(), machine.to_json());
  EXPECT_NEAR(read[0].operations.at("send").bytes_per_s, 3e9, 1);
}

TEST(Machines, NameWhatIsWrongInTheirFile) {
  const TemporaryFolder folder;
  const auto file = folder / "kinds.json";
  const auto expect = [&](const std::string& content, const std::vector<std::string>& parts) {
    testing::put(file, content);
    expect_failure<CheckpointError>([&] { machines_in(file); }, parts);
  };
  expect("[", {"kinds.json", "no list 'kinds'"});
  expect(R"({"kinds": [1]})", {"kind 0", "no object"});
  expect(R"({"kinds": [{"half_tflops": 1}]})", {"kind 0", "no 'name'"});
  expect(R"({"kinds": [{"name": "x", "half_tflops": "many"}]})", {"'half_tflops' is \"many\""});
  expect(R"({"kinds": [{"name": "x", "half_tflops": -1}]})", {"'half_tflops' is -1"});
  expect_failure<CheckpointError>([&] { machines_in(folder / "none.json"); }, {"none.json"});
}

TEST(Machines, TheTableThatComesWithPardiffIsSound) {
  std::set<std::string> names;
  for (const auto& machine : machines_in(PARDIFF_MACHINES)) {
    EXPECT_TRUE(names.insert(machine.name).second) << machine.name;
    EXPECT_LE(machine.efficiency, 1) << machine.name;
  }
  EXPECT_GE(names.size(), 7u);
}

}  // namespace
}  // namespace pardiff::plan
