#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/parallel/config.h>

#include <set>

#include "support/failure.h"

namespace pardiff {
namespace {

using testing::expect_failure;

TEST(ContextParallelConfig, HasTheReferencesDefaultsButRotates) {
  const ContextParallelConfig config;
  EXPECT_FALSE(config.ring_degree || config.ulysses_degree || config.mesh);
  EXPECT_EQ(config.ring(), 1);
  EXPECT_EQ(config.ulysses(), 1);
  EXPECT_TRUE(config.convert_to_fp32);
  EXPECT_EQ(config.rotate_method, "alltoall");
  EXPECT_FALSE(config.ulysses_anything || config.ring_anything);
}

TEST(ContextParallelConfig, AcceptsEveryCombinationThatMeansSomething) {
  const Mesh mesh(0, 12, {{"ring", 2}, {"ulysses", 2}, {"fsdp", 3}}), swapped(5, 6, {{"ulysses", 2}, {"ring", 3}});
  const ContextParallelConfig configs[] = {
      {.ring_degree = 1},
      {.ulysses_degree = 1},
      {.ring_degree = 4},
      {.ring_degree = 2, .ulysses_degree = 3, .rotate_method = "allgather"},
      {.ring_degree = 2, .ulysses_degree = 2, .mesh = mesh, .ulysses_anything = true, .ring_anything = true},
      {.ring_degree = 3, .ulysses_degree = 2, .convert_to_fp32 = false, .mesh = swapped},
      {.ulysses_degree = 2, .ulysses_anything = true},
      {.ring_degree = 2, .ulysses_degree = 2, .ulysses_anything = true},
      {.ring_degree = 2, .ulysses_degree = 2, .ring_anything = true},
  };
  for (const auto& config : configs) EXPECT_NO_THROW(config.validate()) << config.ring() << " x " << config.ulysses();
}

TEST(ContextParallelConfig, HasAMessageForEveryRule) {
  const Mesh unnamed(0, 4, {{"a", 2}, {"b", 2}}), no_ring(0, 2, {{"ulysses", 2}}),
      mesh(0, 2, {{"ring", 2}, {"ulysses", 1}});
  const std::vector<std::pair<ContextParallelConfig, std::vector<std::string>>> rules = {
      {{}, {"neither ring_degree nor ulysses_degree is given"}},
      {{.ring_degree = 0}, {"ring_degree is 0", "starts at 1"}},
      {{.ring_degree = 2, .ulysses_degree = -1}, {"ulysses_degree is -1", "starts at 1"}},
      {{.ring_degree = 2, .rotate_method = "p2p"}, {"rotate_method 'p2p'", "alltoall", "allgather"}},
      {{.ring_degree = 2, .ulysses_anything = true}, {"ulysses_anything is set", "ulysses_degree is 1"}},
      {{.ulysses_degree = 2, .ring_anything = true}, {"ring_anything is set", "ring_degree is 1"}},
      {{.ring_degree = 2, .ulysses_degree = 2, .mesh = unnamed}, {"a=2, b=2", "no axes named ring and ulysses"}},
      {{.ulysses_degree = 2, .mesh = no_ring}, {"ulysses=2", "no axes named ring and ulysses"}},
      {{.ring_degree = 4, .mesh = mesh}, {"ring_degree is 4", "2 ranks along 'ring'"}},
      {{.ring_degree = 2, .ulysses_degree = 2, .mesh = mesh}, {"ulysses_degree is 2", "1 ranks along 'ulysses'"}},
  };
  std::set<std::string> messages;
  for (const auto& [config, parts] : rules) {
    messages.insert(expect_failure<ConfigError>([&, &bad = config] { bad.validate(); }, parts));
  }
  EXPECT_EQ(messages.size(), rules.size());
}

TEST(TensorParallelConfig, TakesItsDegreeFromAMesh) {
  const Mesh mesh(0, 8, {{"dp", 2}, {"tp", 4}});
  EXPECT_EQ((TensorParallelConfig{.mesh = mesh}).degree(), 4);
  EXPECT_NO_THROW((TensorParallelConfig{.mesh = mesh}).validate());
  EXPECT_NO_THROW((TensorParallelConfig{.tp_degree = 4, .mesh = mesh}).validate());
  EXPECT_EQ(TensorParallelConfig{}.degree(), 1);
}

TEST(TensorParallelConfig, HasAMessageForEveryRule) {
  const Mesh mesh(0, 8, {{"dp", 2}, {"tp", 4}}), without(0, 8, {{"dp", 8}});
  expect_failure<ConfigError>([] { TensorParallelConfig{.tp_degree = 0}.validate(); },
                              {"tp_degree is 0", "starts at 1"});
  expect_failure<ConfigError>([&] { TensorParallelConfig{.mesh = without}.validate(); }, {"dp=8", "no axis named tp"});
  expect_failure<ConfigError>([&] { TensorParallelConfig{.tp_degree = 2, .mesh = mesh}.validate(); },
                              {"tp_degree is 2", "4 ranks along 'tp'"});
}

TEST(ParallelConfig, OrdersTheMeshAsTheReferenceDoes) {
  const ParallelConfig config{.context_parallel_config = ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 3},
                              .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2},
                              .cfg_degree = 2,
                              .dp_degree = 1,
                              .fsdp_degree = 2};
  EXPECT_EQ(config.ranks(), 48);
  const auto mesh = config.mesh(47, 48);
  const Mesh::Axes expected = {{"dp", 1}, {"fsdp", 2}, {"cfg", 2}, {"ring", 2}, {"ulysses", 3}, {"tp", 2}};
  EXPECT_EQ(mesh.axes(), expected);
  EXPECT_EQ(mesh.rank(), 47);
}

TEST(ParallelConfig, KeepsACustomMesh) {
  const Mesh custom(3, 8, {{"ulysses", 2}, {"tp", 2}, {"ring", 2}});
  const ParallelConfig config{
      .context_parallel_config = ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2, .mesh = custom},
      .tensor_parallel_config = TensorParallelConfig{.mesh = custom}};
  EXPECT_EQ(config.mesh(3, 8), custom);
}

TEST(ParallelConfig, HasAMessageForEveryRule) {
  const Mesh one(0, 4, {{"ring", 2}, {"ulysses", 2}}), other(0, 4, {{"ring", 2}, {"ulysses", 2}, {"tp", 1}});
  const ContextParallelConfig bad_context{.ring_degree = 0}, on_one{.ring_degree = 2, .ulysses_degree = 2, .mesh = one};
  const std::vector<std::pair<ParallelConfig, std::vector<std::string>>> rules = {
      {{.context_parallel_config = bad_context}, {"ring_degree is 0"}},
      {{.tensor_parallel_config = TensorParallelConfig{.tp_degree = -2}}, {"tp_degree is -2"}},
      {{.cfg_degree = 3}, {"cfg_degree is 3", "use 1 or 2"}},
      {{.cfg_degree = 0}, {"cfg_degree is 0", "use 1 or 2"}},
      {{.dp_degree = 0}, {"dp_degree is 0", "starts at 1"}},
      {{.fsdp_degree = -1}, {"fsdp_degree is -1", "starts at 1"}},
      {{.shard_weights_over = {"ulyses"}}, {"shard_weights_over", "'ulyses'", "dp, fsdp, cfg, ring, ulysses"}},
      {{.shard_weights_over = {"tp"}}, {"shard_weights_over", "'tp'"}},
      {{.shard_weights_over = {"ring", "ring"}}, {"shard_weights_over", "'ring' twice"}},
      {{.context_parallel_config = on_one, .tensor_parallel_config = TensorParallelConfig{.mesh = other}},
       {"different meshes", "ring=2, ulysses=2, tp=1"}},
  };
  for (const auto& [config, parts] : rules) {
    expect_failure<ConfigError>([&, &bad = config] { bad.validate(); }, parts);
  }
}

TEST(ParallelConfig, ComparesItsDegreesWithTheWorld) {
  const ParallelConfig config{.context_parallel_config = ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2}};
  EXPECT_NO_THROW(config.mesh(0, 4));
  expect_failure<ConfigError>([&] { config.mesh(0, 6); }, {"multiply to 4", "ring 2", "ulysses 2", "6 ranks"});
  expect_failure<ConfigError>([&] { config.mesh(0, 2); }, {"multiply to 4", "2 ranks"});
  expect_failure<ConfigError>([&] { config.mesh(0, 1); },
                              {"multiply to 4", "no process group", "torchrun", "PARDIFF_NPROC_PER_NODE=4"});

  const Mesh of_rank_1(1, 4, {{"ring", 2}, {"ulysses", 2}}), with_tp(0, 8, {{"ring", 2}, {"ulysses", 2}, {"tp", 2}});
  const auto on = [](const Mesh& mesh) {
    return ParallelConfig{.context_parallel_config =
                              ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2, .mesh = mesh}};
  };
  expect_failure<ConfigError>([&] { on(of_rank_1).mesh(0, 4); }, {"rank 1 of 4", "rank 0 of 4"});
  expect_failure<ConfigError>([&] { on(of_rank_1).mesh(1, 8); }, {"rank 1 of 4", "rank 1 of 8"});
  expect_failure<ConfigError>([&] { on(with_tp).mesh(0, 8); }, {"tp_degree is 1", "2 ranks along 'tp'"});
}

// An axis of a custom mesh that the config also has a degree for must agree with it.
TEST(ParallelConfig, ComparesTheOuterDegreesWithACustomMesh) {
  const Mesh mesh(0, 8, {{"dp", 2}, {"ring", 2}, {"ulysses", 2}});
  ParallelConfig config{.context_parallel_config =
                            ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2, .mesh = mesh}};
  EXPECT_NO_THROW(config.mesh(0, 8));  // a further axis is the caller's
  config.dp_degree = 4;
  expect_failure<ConfigError>([&] { config.mesh(0, 8); }, {"dp_degree is 4", "2 ranks along 'dp'"});
}

}  // namespace
}  // namespace pardiff
