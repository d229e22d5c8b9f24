#pragma once
#include <pardiff/nn/recompute.h>
#include <pardiff/parallel/config.h>
#include <pardiff/parallel/mesh.h>
#include <pardiff/parallel/plan.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pardiff {

class World;
class WeightShards;
class WeightsOnDemand;

/// What a rank holds of a model's parameters.
struct WeightBytes {
  int64_t kept = 0;
  /// The most so far, with what was gathered of sharded weights.
  int64_t peak = 0;
};

/// The layout of a batch of too few pictures: the fsdp ranks of its mesh are further ring ranks.
ParallelConfig with_fsdp_in_ring(const ParallelConfig& config, const Mesh& mesh);

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
  /// The modules whose parameters are gathered and freed together where weights are sharded over ranks, in the order of
  /// their use; empty: it does not support that.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> weight_units() const { return {}; }
  /// Attention heads, which a tensor-parallel degree must divide; 0 if it has none.
  virtual int64_t attention_heads() const { return 0; }
  /// Modules, by keys as in a plan, that tensor parallelism leaves whole and that meet this rank's heads only: their
  /// gradients are partial (see reduce_gradients).
  virtual std::vector<std::string> modules_on_local_heads() const { return {}; }

  /// Refuses what enable_parallelism would refuse of this model and world, from shapes alone: no weight is read.
  /// Returns the mesh of the degrees, seen from this rank. Throws: ConfigError.
  Mesh check_parallelism(const ParallelConfig& config, const World& world);
  /// The same for ranks that need not exist.
  Mesh check_parallelism(const ParallelConfig& config, int rank, int world_size);
  /// Runs the model on several ranks from now on. `world` must live until disable_parallelism, or as long as the model.
  /// Collective: every rank of `world`, with equal arguments. Everything is checked before anything changes.
  /// Throws: ConfigError; a rejected call can be corrected and repeated.
  void enable_parallelism(const ParallelConfig& config, World& world);
  /// The same for a model whose parameters hold this rank's slices already (see tensor_parallel_slices).
  void enable_parallelism(const ParallelConfig& config, World& world, bool weights_already_sharded);
  void enable_parallelism(const ContextParallelConfig& config, World& world);
  void enable_parallelism(const TensorParallelConfig& config, World& world);
  /// What the ranks keep of each other's weights; null if they are not sharded over ranks (shard_weights_over, fsdp).
  const std::shared_ptr<WeightShards>& weight_shards() const { return weight_shards_; }
  /// For a model about to be loaded, before enable_parallelism: makes weight_shards, which the loader then feeds. Null
  /// if `config` does not shard the weights. Collective: every rank of `world`.
  std::shared_ptr<WeightShards> prepare_weight_shards(const ParallelConfig& config, World& world);
  /// Where weights are sharded over ranks, what an optimiser updates in place of the parameters: flat tensors, this
  /// rank's 1/N of every unit. Backward leaves their gradients, summed over the ranks that share the weights (see
  /// reduce_gradients); parameters get none. Empty otherwise.
  std::vector<at::Tensor> weight_parts() const;
  /// This rank's bytes of parameters, as far as they are in memory.
  WeightBytes weight_bytes() const;
  /// Reads what has not been read yet, or was given back, of a model that was loaded to be read when it is used. What
  /// uses the model does so itself (forward, saving, enabling and disabling parallelism); who looks at parameters calls
  /// this first. No communication. Throws: CheckpointError.
  void need_weights() const;
  /// How this model's weights are read; null: they are all there.
  const std::shared_ptr<WeightsOnDemand>& weights_on_demand() const { return weights_on_demand_; }
  void read_on_demand(std::shared_ptr<WeightsOnDemand> weights) { weights_on_demand_ = std::move(weights); }
  /// Restores the one-rank model; gradients of weight_parts become those of the parameters. Collective under tensor
  /// parallelism and where weights are sharded over ranks: every rank gathers the whole weights.
  void disable_parallelism();
  /// With `folded` the fsdp ranks of a parallel model become further ring ranks, on which a batch of few pictures is
  /// computed; without, what they were. The weights stay as they are sharded. Collective: every rank of the world.
  /// Throws: ConfigError if the attention backend cannot do the mode.
  void fold_fsdp_into_ring(bool folded);
  bool is_fsdp_folded_into_ring() const { return unfolded_ != nullptr; }
  bool is_parallel() const { return parallelism_ != nullptr; }
  /// Null unless it is parallel, as are the mesh of the degrees, seen from this rank, and the world of its ranks.
  const ParallelConfig* parallel_config() const { return parallelism_ ? &parallelism_->config : nullptr; }
  const Mesh* mesh() const { return parallelism_ ? &parallelism_->mesh : nullptr; }
  World* world() const { return parallelism_ ? parallelism_->world : nullptr; }

  /// Chooses the attention kernels of all attentions of this model.
  /// Throws: ConfigError for an unknown name, or a backend that cannot do the mode in use.
  void set_attention_backend(const std::string& name);

 protected:
  /// `segment` of `inputs` while the weights of a unit are whole. Where they are sharded and gradients are recorded, it
  /// runs once more in backward, as nn::recomputed does. Collective then: the ranks that share the weights.
  std::vector<at::Tensor> with_weights_of(const torch::nn::Module& unit, const nn::Segment& segment,
                                          const std::vector<at::Tensor>& inputs) const;

 private:
  struct Parallelism {
    ParallelConfig config;
    Mesh mesh;
    World* world;
  };
  void share_tokens_as(const Parallelism& parallelism);

  std::shared_ptr<const Parallelism> parallelism_;
  std::shared_ptr<const Parallelism> unfolded_;  // null unless folded
  std::shared_ptr<WeightShards> weight_shards_;
  std::shared_ptr<WeightsOnDemand> weights_on_demand_;
};

}  // namespace pardiff
