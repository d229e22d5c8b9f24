#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/models/apply.h>
#include <pardiff/nn/tensor_parallel.h>
#include <pardiff/parallel/shard.h>

#include <map>

#include "models/module_tree.h"

namespace pardiff {
namespace {

struct PlannedLinear {
  std::string path;
  nn::LinearImpl* linear;
  const TensorParallelStyle* style;
};

std::vector<PlannedLinear> resolve(torch::nn::Module& root, const TensorParallelPlan& plan) {
  check<ConfigError>(!plan.empty(), "'", root.name(), "' has no tensor-parallel plan.");
  std::vector<PlannedLinear> planned;
  std::map<std::string, std::string> keys;  // of each path
  for (const auto& [key, style] : plan) {
    for (const auto& [path, module] : find_modules(root, key)) {
      auto* linear = module->as<nn::LinearImpl>();
      check<ConfigError>(linear, "plan key '", key, "': '", path, "' is a ", module->name(),
                         ", and only pardiff::nn::Linear can be sharded.");
      const auto [first, is_new] = keys.emplace(path, key);
      check<ConfigError>(is_new, "the plan shards '", path, "' twice, by its keys '", first->second, "' and '", key,
                         "'. Name every layer once.");
      planned.push_back({path, linear, &style});
    }
  }
  return planned;
}

void add_slices(std::map<std::string, TensorSlice>& slices, const PlannedLinear& planned, int ranks, int rank) {
  const bool column = planned.style->is_column();
  const int64_t size = column ? planned.linear->out_features() : planned.linear->in_features();
  const auto weight = joined_path(planned.path, "weight");
  const auto ranges = shard_ranges(weight, *planned.style, size, ranks, rank);
  slices[weight] = {column ? 0 : 1, ranges};
  if (column && planned.linear->bias.defined()) slices[joined_path(planned.path, "bias")] = {0, ranges};
}

at::Tensor sliced(const at::Tensor& whole, const TensorSlice& slice) {
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : slice.ranges) parts.push_back(whole.narrow(slice.dim, begin, end - begin));
  return at::cat(parts, slice.dim);
}

// Random initial weights differ between ranks: rank 0's count, for sharded and whole parameters alike.
void take_slices(torch::nn::Module& module, const std::map<std::string, TensorSlice>& slices,
                 const ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.named_parameters()) {
    const auto whole = parameter.value().detach().contiguous().clone();
    broadcast(whole, 0, group).wait();
    const auto found = slices.find(parameter.key());
    parameter.value().set_data(found == slices.end() ? whole : sliced(whole, found->second));
  }
}

void make_whole(at::Tensor& parameter, int64_t dim, const nn::LinearSharding& sharding) {
  parameter.mutable_grad() = at::Tensor();  // of a slice
  parameter.set_data(nn::whole_from_shards(parameter.detach(), dim, sharding.blocks, sharding.group));
}

}  // namespace

void remove_tensor_parallel(torch::nn::Module& module) {
  for_each_module(module, [](const FoundModule& found) {
    auto* linear = found.module->as<nn::LinearImpl>();
    if (!linear || linear->sharding.style == nn::ShardStyle::kWhole) return;
    const bool is_column = linear->sharding.style == nn::ShardStyle::kColumn;
    make_whole(linear->weight, is_column ? 0 : 1, linear->sharding);
    if (is_column && linear->bias.defined()) make_whole(linear->bias, 0, linear->sharding);
    linear->sharding = {};
  });
}

std::map<std::string, TensorSlice> tensor_parallel_slices(torch::nn::Module& module, const TensorParallelPlan& plan,
                                                          int ranks, int rank) {
  std::map<std::string, TensorSlice> slices;
  for (const auto& planned : resolve(module, plan)) add_slices(slices, planned, ranks, rank);
  return slices;
}

void apply_tensor_parallel(torch::nn::Module& module, const TensorParallelConfig& config, World& world,
                           const TensorParallelPlan& plan, bool weights_already_sharded) {
  const auto mesh = ParallelConfig{.tensor_parallel_config = config}.mesh(world.rank(), world.size());
  apply_tensor_parallel(module, config, world, mesh, plan, weights_already_sharded);
}

void apply_tensor_parallel(torch::nn::Module& module, const TensorParallelConfig& config, World& world,
                           const Mesh& mesh, const TensorParallelPlan& plan, bool weights_already_sharded) {
  config.validate();
  const int ranks = mesh.size("tp"), rank = mesh.index("tp");
  const auto planned = resolve(module, plan);
  for (const auto& [path, linear, style] : planned) {
    check<ConfigError>(linear->sharding.style == nn::ShardStyle::kWhole, "'", path,
                       "' is already sharded. Load the model anew to change its tensor parallelism.");
  }
  const auto slices = tensor_parallel_slices(module, plan, ranks, rank);
  if (ranks == 1) return;
  world.agree("the tensor-parallel configuration", text_of("mesh ", mesh.to_string()));

  const auto group = world.group_of(mesh.ranks_along({"tp"}));
  if (!weights_already_sharded) take_slices(module, slices, group);
  for (const auto& [path, linear, style] : planned) {
    linear->sharding = {style->is_column() ? nn::ShardStyle::kColumn : nn::ShardStyle::kRow, group,
                        style->is_packed() ? style->blocks() : std::vector<int64_t>{1}};
  }
}

}  // namespace pardiff
