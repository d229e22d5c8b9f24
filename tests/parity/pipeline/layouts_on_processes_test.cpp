// Golden pictures under layouts of several axes, on ranks that are processes over Gloo.
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include <string>
#include <utility>
#include <vector>

#include "parity/pipeline/golden_run.h"
#include "support/golden.h"
#include "support/rank_program.h"

namespace pardiff {
namespace {

struct Layout {
  std::string name;
  ParallelConfig config;
  std::vector<std::string> goldens;  // that it can be used for; the first is tested always, the others in full runs
};

TensorParallelConfig tensor(int degree) { return {.tp_degree = degree}; }

const std::vector<Layout>& layouts() {
  const std::vector<std::string> under_tp = {"wide", "square", "batch", "true_cfg"};
  static const std::vector<Layout> table = {
      {"tp2", {.tensor_parallel_config = tensor(2)}, {"wide", "square", "batch", "true_cfg", "odd_tokens"}},
      {"tp2_ulysses2",
       {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}, .tensor_parallel_config = tensor(2)},
       under_tp},
      {"tp2_ring2",
       {.context_parallel_config = ContextParallelConfig{.ring_degree = 2}, .tensor_parallel_config = tensor(2)},
       under_tp},
      {"cfg2_ulysses2",
       {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}, .cfg_degree = 2},
       {"true_cfg"}},
      {"fsdp2_ring2",
       {.context_parallel_config = ContextParallelConfig{.ring_degree = 2}, .fsdp_degree = 2},
       {"batch"}},
      {"ulysses4_sharded",
       {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 4}, .shard_weights_over = {"ulysses"}},
       {"square", "wide", "batch", "true_cfg"}},
      {"fsdp2_ulysses2_folded",
       {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}, .fsdp_degree = 2},
       {"wide"}},
      {"dp2_tp2", {.tensor_parallel_config = tensor(2), .dp_degree = 2}, {"batch"}},
  };
  return table;
}

FluxPipelineOutput generate(World& world, const std::string& golden, const ParallelChoice& parallel) {
  auto pipeline = FluxPipeline::from_pretrained(testing::model_path("flux-shapes"), world,
                                                {.dtype = at::kFloat, .parallel_config = parallel});
  return pipeline.generate(testing::GoldenRun(golden).inputs());
}

void compare(World& world, const std::string& golden, const ParallelConfig& config) {
  const auto output = generate(world, golden, config);
  if (world.rank() != 0) return;
  World alone({.device = "cpu", .threads = 1});
  const double error = testing::absolute_error(output.image, generate(alone, golden, {}).image);
  check<Error>(error <= testing::picture_tolerance(golden), "the picture is ", error, " away from one rank's");
}

std::string program_name(const Layout& layout, const std::string& golden) { return layout.name + "_" + golden; }

testing::RankPrograms programs() {
  testing::RankPrograms programs;
  for (const auto& layout : layouts()) {
    for (const auto& golden : layout.goldens) {
      programs[program_name(layout, golden)] = [layout, golden](World& world) {
        compare(world, golden, layout.config);
      };
    }
  }
  return programs;
}

struct Case {
  std::string program;
  int ranks;
};

std::vector<Case> cases(bool full) {
  std::vector<Case> all;
  for (const auto& layout : layouts()) {
    for (const auto& golden : layout.goldens) {
      if ((golden != layout.goldens.front()) == full)
        all.push_back({program_name(layout, golden), layout.config.ranks()});
    }
  }
  return all;
}

class Processes : public ::testing::TestWithParam<Case> {};
TEST_P(Processes, GiveThePictureOfOneRank) { testing::expect_ranks_succeed(GetParam().ranks, GetParam().program); }
INSTANTIATE_TEST_SUITE_P(Layouts, Processes, ::testing::ValuesIn(cases(false)),
                         [](const auto& tested) { return tested.param.program; });

class FullProcesses : public ::testing::TestWithParam<Case> {};
TEST_P(FullProcesses, GiveThePictureOfOneRank) { testing::expect_ranks_succeed(GetParam().ranks, GetParam().program); }
INSTANTIATE_TEST_SUITE_P(Layouts, FullProcesses, ::testing::ValuesIn(cases(true)),
                         [](const auto& tested) { return tested.param.program; });

}  // namespace
}  // namespace pardiff

int main(int argc, char** argv) {
  return pardiff::testing::run_tests_or_rank(argc, argv, pardiff::programs(),
                                             {.device = "cpu", .threads = 1, .timeout_s = 60});
}
