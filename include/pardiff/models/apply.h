#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/parallel/config.h>
#include <pardiff/parallel/layout.h>
#include <pardiff/parallel/plan.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace pardiff {

namespace nn {
struct ContextShare;
}

/// Cuts the token sequence of `module` among ranks: boundaries split and gather as `plan` says, attentions exchange.
/// Collective: every rank of `world`, with equal arguments. Everything is checked before anything changes.
/// Throws: ConfigError for degrees that do not fit the world, a plan key or argument that matches nothing (the message
/// lists the valid ones), a module without a boundary, an attention backend that cannot do the mode, or a second
/// application.
void apply_context_parallel(torch::nn::Module& module, const ContextParallelConfig& config, World& world,
                            const ContextParallelPlan& plan);
/// The same on a mesh that may have further axes.
void apply_context_parallel(torch::nn::Module& module, const ContextParallelConfig& config, World& world,
                            const Mesh& mesh, const ContextParallelPlan& plan);
/// Undoes apply_context_parallel.
void remove_context_parallel(torch::nn::Module& module);

/// Cuts the weights of the Linears that `plan` names among the ranks of the tp axis.
/// With `weights_already_sharded` the parameters hold this rank's slices already and only the forward is changed.
/// Otherwise rank 0's values are sent to the others first, so that random weights agree.
/// Collective: every rank of `world`. Throws: ConfigError; everything is checked before a weight is touched.
void apply_tensor_parallel(torch::nn::Module& module, const TensorParallelConfig& config, World& world,
                           const TensorParallelPlan& plan, bool weights_already_sharded = false);
void apply_tensor_parallel(torch::nn::Module& module, const TensorParallelConfig& config, World& world,
                           const Mesh& mesh, const TensorParallelPlan& plan, bool weights_already_sharded = false);
/// Undoes apply_tensor_parallel: every rank holds the whole weights again, and gradients of the slices are dropped.
/// Collective: the ranks of each tp group. Cost: one all_gather a sharded parameter.
void remove_tensor_parallel(torch::nn::Module& module);
/// What each parameter keeps of the whole tensor, by parameter name. Pure.
std::map<std::string, TensorSlice> tensor_parallel_slices(torch::nn::Module& module, const TensorParallelPlan& plan,
                                                          int ranks, int rank);

/// Chooses the attention kernels of all attentions below `module`; "native" unless told otherwise.
/// Throws: ConfigError for an unknown name, or a backend that cannot do the mode in use (the message lists those that
/// can).
void set_attention_backend(torch::nn::Module& module, const std::string& name);

/// Peak bytes of other ranks' keys and values held by the buffers of `module`'s attentions.
int64_t peak_remote_kv_bytes(torch::nn::Module& module);

/// What the boundaries of `module` share; null if it is not context parallel.
std::shared_ptr<const nn::ContextShare> context_share(torch::nn::Module& module);

/// While it lives, the boundaries of `module` pass tensors through and answer `layout` from `layouts`: for callers that
/// loop over a model and keep its tensors split.
class KeepSplit {
 public:
  /// Throws: ConfigError if context parallelism has not been applied to `module`.
  KeepSplit(torch::nn::Module& module, std::map<std::string, SequenceLayout> layouts);
  ~KeepSplit();
  KeepSplit(const KeepSplit&) = delete;
  KeepSplit& operator=(const KeepSplit&) = delete;

 private:
  std::shared_ptr<nn::ContextShare> share_;
};

}  // namespace pardiff
