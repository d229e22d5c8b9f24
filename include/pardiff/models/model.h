#pragma once
#include <pardiff/parallel/config.h>
#include <pardiff/parallel/mesh.h>
#include <pardiff/parallel/plan.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace pardiff {

class World;

/// A network with the checkpoint's parameter names, a context plan and a tensor plan.
class Model : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// The class name that stands in checkpoints.
  virtual std::string class_name() const = 0;
  /// config.json, as diffusers or transformers write it.
  virtual std::string config_json() const = 0;
  /// Where its tokens are split and gathered; empty: it does not support context parallelism.
  virtual ContextParallelPlan context_parallel_plan() const { return {}; }
  /// How its Linears are cut; empty: it does not support tensor parallelism.
  virtual TensorParallelPlan tensor_parallel_plan() const { return {}; }
  /// Attention heads, which a tensor-parallel degree must divide; 0 if it has none.
  virtual int64_t attention_heads() const { return 0; }
  /// Modules, by keys as in a plan, that tensor parallelism leaves whole and that meet this rank's heads only: their
  /// gradients are partial (see reduce_gradients).
  virtual std::vector<std::string> modules_on_local_heads() const { return {}; }

  /// Refuses what enable_parallelism would refuse of this model and world, from shapes alone: no weight is read.
  /// Returns the mesh of the degrees, seen from this rank. Throws: ConfigError.
  Mesh check_parallelism(const ParallelConfig& config, const World& world);
  /// Runs the model on several ranks from now on. `world` must live until disable_parallelism, or as long as the model.
  /// Collective: every rank of `world`, with equal arguments. Everything is checked before anything changes.
  /// Throws: ConfigError; a rejected call can be corrected and repeated.
  void enable_parallelism(const ParallelConfig& config, World& world);
  /// The same for a model whose parameters hold this rank's slices already (see tensor_parallel_slices).
  void enable_parallelism(const ParallelConfig& config, World& world, bool weights_already_sharded);
  void enable_parallelism(const ContextParallelConfig& config, World& world);
  void enable_parallelism(const TensorParallelConfig& config, World& world);
  /// Restores the one-rank model. Collective under tensor parallelism: every rank gathers the whole weights.
  void disable_parallelism();
  bool is_parallel() const { return parallelism_ != nullptr; }
  /// Null unless it is parallel, as are the mesh of the degrees, seen from this rank, and the world of its ranks.
  const ParallelConfig* parallel_config() const { return parallelism_ ? &parallelism_->config : nullptr; }
  const Mesh* mesh() const { return parallelism_ ? &parallelism_->mesh : nullptr; }
  World* world() const { return parallelism_ ? parallelism_->world : nullptr; }

  /// Chooses the attention kernels of all attentions of this model.
  /// Throws: ConfigError for an unknown name, or a backend that cannot do the mode in use.
  void set_attention_backend(const std::string& name);

 private:
  struct Parallelism {
    ParallelConfig config;
    Mesh mesh;
    World* world;
  };
  std::shared_ptr<const Parallelism> parallelism_;
};

}  // namespace pardiff
