#include <pardiff/attention/mode.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/model.h>

#include "models/module_tree.h"
#include "models/weight_shards.h"
#include "models/weights_on_demand.h"

namespace pardiff {
namespace {

void check_heads(const Model& model, int degree) {
  const int64_t heads = model.attention_heads();
  check<ConfigError>(heads % degree == 0, "tp_degree ", degree, " must divide the ", heads, " attention heads of ",
                     model.class_name(), ". Choose a degree that does.");
}

// The rule of the plain modes, found before the first forward.
void check_ulysses_heads(const Model& model, const ContextParallelConfig& config, int tp_degree) {
  const auto why_not = attention_mode(config).why_not_heads(model.attention_heads() / tp_degree, config.ulysses());
  check<ConfigError>(why_not.empty(), model.class_name(), tp_degree > 1 ? " on each tensor-parallel rank: " : ": ",
                     why_not);
}

}  // namespace

ParallelConfig with_fsdp_in_ring(const ParallelConfig& config, const Mesh& mesh) {
  auto folded = config;
  auto context = config.context_parallel_config.value_or(ContextParallelConfig{});
  context.mesh = mesh.folded("fsdp", "ring").with_axis("ulysses");
  context.ring_degree = context.mesh->size("ring");
  folded.context_parallel_config = context;
  if (folded.tensor_parallel_config) folded.tensor_parallel_config->mesh = context.mesh;
  folded.fsdp_degree = 1;
  return folded;
}

void Model::enable_parallelism(const ContextParallelConfig& config, World& world) {
  enable_parallelism(ParallelConfig{.context_parallel_config = config}, world);
}

void Model::enable_parallelism(const TensorParallelConfig& config, World& world) {
  enable_parallelism(ParallelConfig{.tensor_parallel_config = config}, world);
}

void Model::enable_parallelism(const ParallelConfig& config, World& world) {
  need_weights();
  enable_parallelism(config, world, false);
}

void Model::need_weights() const {
  if (weights_on_demand_) weights_on_demand_->read_all();
}

Mesh Model::check_parallelism(const ParallelConfig& config, const World& world) {
  return check_parallelism(config, world.rank(), world.size());
}

Mesh Model::check_parallelism(const ParallelConfig& config, int rank, int world_size) {
  check<ConfigError>(!is_parallel(), "parallelism is already applied to this ", class_name(),
                     ". Call disable_parallelism first.");
  const auto mesh = config.mesh(rank, world_size);
  check<ConfigError>(config.weight_axes().empty() || !weight_units().empty(), class_name(),
                     " names no units whose weights could be sharded over ranks. Leave out fsdp_degree and "
                     "shard_weights_over.");
  check<ConfigError>(
      config.shard_weights_over.empty() || mesh.ranks_along(config.shard_weights_over).size() > 1,
      "shard_weights_over names ", joined(config.shard_weights_over),
      ", along which there is one rank, so nothing would be shared. Name an axis of more ranks, or leave "
      "--shard-weights-over (shard_weights_over) out.");
  if (config.tensor_parallel_config) {
    check<ConfigError>(!tensor_parallel_plan().empty(), class_name(), " has no tensor-parallel plan.");
    check_heads(*this, mesh.size("tp"));
    tensor_parallel_slices(*this, tensor_parallel_plan(), mesh.size("tp"), mesh.index("tp"));  // throws if it cannot
  }
  if (config.context_parallel_config) {
    check_ulysses_heads(*this, *config.context_parallel_config, mesh.size("tp"));
    check<ConfigError>(!context_parallel_plan().empty(), class_name(), " has no context-parallel plan.");
  }
  return mesh;
}

void Model::enable_parallelism(const ParallelConfig& config, World& world, bool weights_already_sharded) {
  const auto mesh = check_parallelism(config, world);
  if (config.context_parallel_config) {
    apply_context_parallel(*this, *config.context_parallel_config, world, mesh, context_parallel_plan());
  }
  if (config.tensor_parallel_config) {
    apply_tensor_parallel(*this, *config.tensor_parallel_config, world, mesh, tensor_parallel_plan(),
                          weights_already_sharded);
  }
  if (!weight_shards_ && prepare_weight_shards(config, world)) weight_shards_->shard_all();
  parallelism_ = std::make_shared<const Parallelism>(Parallelism{config, mesh, &world});
}

std::shared_ptr<WeightShards> Model::prepare_weight_shards(const ParallelConfig& config, World& world) {
  const auto mesh = config.mesh(world.rank(), world.size());
  const auto ranks = mesh.ranks_along(config.weight_axes());
  if (ranks.size() == 1) return nullptr;
  WeightShards::ParameterSet on_local_heads;  // with one tp rank they are as any others, and travel together
  if (mesh.size("tp") > 1) on_local_heads = parameters_at(*this, modules_on_local_heads());
  weight_shards_ = std::make_shared<WeightShards>(weight_units(), world.group_of(ranks, "weights"), on_local_heads);
  return weight_shards_;
}

std::vector<at::Tensor> Model::weight_parts() const {
  return weight_shards_ ? weight_shards_->parts() : std::vector<at::Tensor>();
}

WeightBytes Model::weight_bytes() const {
  if (weight_shards_) return {weight_shards_->bytes(), weight_shards_->peak_bytes()};
  const int64_t bytes = present_bytes(*this);
  return {bytes, weights_on_demand_ ? std::max(bytes, weights_on_demand_->peak_bytes()) : bytes};
}

std::vector<at::Tensor> Model::with_weights_of(const torch::nn::Module& unit, const nn::Segment& segment,
                                               const std::vector<at::Tensor>& inputs) const {
  return weight_shards_ ? run_with_whole_weights(weight_shards_, unit, segment, inputs) : segment(inputs);
}

void Model::disable_parallelism() {
  need_weights();
  if (weight_shards_) weight_shards_->restore();
  weight_shards_.reset();
  remove_context_parallel(*this);
  remove_tensor_parallel(*this);
  parallelism_.reset();
  unfolded_.reset();
}

void Model::share_tokens_as(const Parallelism& parallelism) {
  remove_context_parallel(*this);
  const auto& context = parallelism.config.context_parallel_config;
  if (context) apply_context_parallel(*this, *context, *parallelism.world, parallelism.mesh, context_parallel_plan());
}

void Model::fold_fsdp_into_ring(bool folded) {
  if (!parallelism_ || folded == (unfolded_ != nullptr)) return;
  auto next = unfolded_;
  if (folded) {
    const auto config = with_fsdp_in_ring(parallelism_->config, parallelism_->mesh);
    auto& world = *parallelism_->world;
    next = std::make_shared<const Parallelism>(Parallelism{config, config.mesh(world.rank(), world.size()), &world});
  }
  try {
    share_tokens_as(*next);
  } catch (const ConfigError&) {
    share_tokens_as(*parallelism_);
    throw;
  }
  unfolded_ = folded ? parallelism_ : nullptr;
  parallelism_ = next;
}

void Model::set_attention_backend(const std::string& name) { pardiff::set_attention_backend(*this, name); }

}  // namespace pardiff
