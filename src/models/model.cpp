#include <pardiff/attention/mode.h>
#include <pardiff/core/check.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/model.h>

namespace pardiff {
namespace {

void check_heads(const Model& model, int degree) {
  const int64_t heads = model.attention_heads();
  check<ConfigError>(heads % degree == 0, "tp_degree ", degree, " must divide the ", heads, " attention heads of ",
                     model.class_name(), ".");
}

// The rule of the plain modes, found before the first forward.
void check_ulysses_heads(const Model& model, const ContextParallelConfig& config, int tp_degree) {
  const auto why_not = attention_mode(config).why_not_heads(model.attention_heads() / tp_degree, config.ulysses());
  check<ConfigError>(why_not.empty(), model.class_name(), tp_degree > 1 ? " on each tensor-parallel rank: " : ": ",
                     why_not);
}

}  // namespace

void Model::enable_parallelism(const ContextParallelConfig& config, World& world) {
  enable_parallelism(ParallelConfig{.context_parallel_config = config}, world);
}

void Model::enable_parallelism(const TensorParallelConfig& config, World& world) {
  enable_parallelism(ParallelConfig{.tensor_parallel_config = config}, world);
}

void Model::enable_parallelism(const ParallelConfig& config, World& world) { enable_parallelism(config, world, false); }

Mesh Model::check_parallelism(const ParallelConfig& config, const World& world) {
  check<ConfigError>(!is_parallel(), "parallelism is already applied to this ", class_name(),
                     ". Call disable_parallelism first.");
  const auto mesh = config.mesh(world.rank(), world.size());
  check<ConfigError>(config.fsdp_degree == 1 && config.shard_weights_over.empty(),
                     "fsdp_degree and shard_weights_over are not implemented yet. Leave them at their defaults and use "
                     "context or tensor parallelism.");
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
  parallelism_ = std::make_shared<const Parallelism>(Parallelism{config, mesh, &world});
}

void Model::disable_parallelism() {
  remove_context_parallel(*this);
  remove_tensor_parallel(*this);
  parallelism_.reset();
}

void Model::set_attention_backend(const std::string& name) { pardiff::set_attention_backend(*this, name); }

}  // namespace pardiff
