#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/io/config_file.h>
#include <pardiff/models/load.h>
#include <pardiff/models/model.h>
#include <pardiff/nn/boundary.h>
#include <pardiff/nn/embedding.h>
#include <pardiff/nn/linear.h>
#include <pardiff/nn/modulation.h>
#include <pardiff/nn/parameter.h>
#include <pardiff/nn/rope.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pardiff {
namespace flux {
struct Call;
}

/// transformer/config.json, with the reference's names and defaults.
struct FluxTransformerConfig {
  int64_t patch_size = 1;
  int64_t in_channels = 64;
  std::optional<int64_t> out_channels{};  // unset: in_channels
  int64_t num_layers = 19;                // double blocks
  int64_t num_single_layers = 38;
  int64_t attention_head_dim = 128;
  int64_t num_attention_heads = 24;
  int64_t joint_attention_dim = 4096;
  int64_t pooled_projection_dim = 768;
  bool guidance_embeds = false;
  std::vector<int64_t> axes_dims_rope = {16, 56, 56};

  int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }

  /// Throws: CheckpointError that names the file, the key and what was expected.
  static FluxTransformerConfig from_file(const ConfigFile& file);
  /// Throws: ConfigError that names the field and what was expected.
  void validate() const;
  /// As diffusers writes it.
  std::string to_json() const;
};

/// Shifts, scales and gates of all layers, for some rows of conditions: all that a forward pass needs of timestep,
/// guidance and pooled text. See FluxTransformer2DModelImpl::modulations.
struct FluxModulations {
  /// [rows, chunks x dim]: two of each double block (image, text), then one of each single block and the last norm's.
  std::vector<at::Tensor> layers{};

  bool given() const { return !layers.empty(); }
  /// The rows [start, start + length); views.
  FluxModulations rows(int64_t start, int64_t length) const;
};

/// What the transformer takes, in the reference's order, and what may have been computed before.
struct FluxTransformerInputs {
  at::Tensor hidden_states{};          // [B, image_tokens, in_channels]
  at::Tensor encoder_hidden_states{};  // [B, text_tokens, joint_attention_dim]
  at::Tensor pooled_projections{};     // [B, pooled_projection_dim]
  at::Tensor timestep{};               // [B], the scheduler's divided by 1000
  at::Tensor img_ids{};                // [image_tokens, axes], or with a leading 1
  at::Tensor txt_ids{};                // [text_tokens, axes], or with a leading 1
  at::Tensor guidance{};               // [B]; given exactly if the model has a guidance embedding
  /// With these, of B rows, pooled_projections, timestep and guidance are not looked at.
  FluxModulations modulations{};
  /// With this the ids are not looked at: the rows of the tokens that this rank computes with, text then image.
  std::optional<nn::RotaryTable> rotary{};
};

/// The sum of the embeddings of timestep, guidance (if the model has it) and pooled text.
/// Shapes: timestep and guidance [B], times 1000, pooled [B, pooled_dim]; returns [B, dim].
class TimeTextEmbeddingImpl : public torch::nn::Module {
 public:
  TimeTextEmbeddingImpl(int64_t dim, int64_t pooled_dim, bool guidance, const nn::ParameterOptions& parameters = {});

  at::Tensor forward(const at::Tensor& timestep, const at::Tensor& guidance, const at::Tensor& pooled);

  nn::ConditionEmbedding timestep_embedder, guidance_embedder{nullptr}, text_embedder;
};
TORCH_MODULE(TimeTextEmbedding);

/// FLUX: double blocks in which image and text have their own weights and attend jointly, then single blocks over both.
/// Parameter names are those of diffusers' checkpoints.
class FluxTransformer2DModelImpl : public Model {
 public:
  /// Sees the outputs of every submodule as they arise, under the module's name. A block has two: text, then image
  /// (this rank's share of them). Tensors must not be written to.
  using Observer = std::function<void(const std::string& module, const std::vector<at::Tensor>& outputs)>;

  /// Throws: ConfigError if the config is not valid.
  explicit FluxTransformer2DModelImpl(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters = {});

  /// Predicts the flow's velocity.
  /// Collective: every rank of the model's groups, once it is parallel.
  /// Shapes: see FluxTransformerInputs; returns [B, image_tokens, patch_size^2 out_channels].
  /// Precision: timestep and guidance are rounded to the dtype of the hidden states, and so are their 1000-folds.
  /// Throws: ShapeError; ConfigError if guidance is missing or not wanted.
  at::Tensor forward(const FluxTransformerInputs& inputs);

  /// What `forward` computes of pooled_projections, timestep and guidance (other inputs are not looked at), here for
  /// any number of rows: those of all steps, say. Without gradients the layers are shared out among the context ranks,
  /// which must be given the same rows. Collective: the context and tensor groups, once the model is parallel.
  /// Shapes: pooled_projections [rows, pooled_projection_dim], timestep and guidance [rows].
  /// Precision: bit for bit as `forward` of `batch` rows, which divides the rows; 0: all rows are a batch.
  /// Cost: one all_gather for each of the groups.
  /// Throws: ShapeError; ConfigError as `forward`, and where weights are sharded over ranks (they come with their
  /// blocks).
  FluxModulations modulations(const FluxTransformerInputs& conditions, int64_t batch = 0);
  /// For a model that was read from files and reads its weights when it needs them: reads now what `modulations` needs
  /// on this rank, or what `forward` needs when it is given modulations. Throws: CheckpointError.
  void need_modulation_weights() const;
  void need_main_weights() const;
  /// Gives the memory of the weights that only `modulations` needs back, until they are needed: for a model that was
  /// read from files, and as far as they are as they were read. Does nothing while gradients are recorded.
  void release_modulation_weights();
  /// The rotation of the tokens with these ids, text then image. Shapes: [tokens, axes].
  nn::RotaryTable rotary_table(const at::Tensor& txt_ids, const at::Tensor& img_ids) const;

  std::string class_name() const override { return "FluxTransformer2DModel"; }
  std::string config_json() const override { return config_.to_json(); }
  ContextParallelPlan context_parallel_plan() const override;
  TensorParallelPlan tensor_parallel_plan() const override;
  std::vector<std::shared_ptr<torch::nn::Module>> weight_units() const override;
  int64_t attention_heads() const override { return config_.num_attention_heads; }
  std::vector<std::string> modules_on_local_heads() const override;

  /// How a checkpoint of it is read; unset: each parameter keeps the dtype of the file.
  LoadOptions load_options(std::optional<at::ScalarType> dtype = {}) const { return {.dtype = dtype}; }

  const FluxTransformerConfig& config() const { return config_; }
  /// From now on a forward pass that records gradients keeps only what enters each block, and the backward pass runs
  /// the block again (activation checkpointing): gradients are the same, memory is that of one block. When the model is
  /// parallel all ranks must do alike, for the collectives of a block run again too.
  void enable_gradient_checkpointing() { gradient_checkpointing_ = true; }
  void disable_gradient_checkpointing() { gradient_checkpointing_ = false; }
  bool is_gradient_checkpointing() const { return gradient_checkpointing_; }
  /// An empty function: nobody observes.
  void set_observer(Observer observer) { observer_ = std::move(observer); }

 private:
  FluxTransformerInputs checked(const FluxTransformerInputs& inputs) const;
  void check_conditions(const FluxTransformerInputs& inputs, int64_t batch, const at::Tensor& weight) const;
  void check_modulations(const FluxModulations& modulations, int64_t batch) const;
  void check_rotary(const FluxTransformerInputs& split_inputs) const;
  // Neighbouring layers of `modulation_layers` for every context rank, and the group of these ranks.
  struct ModulationShares {
    std::vector<SequenceSpan> spans;
    ProcessGroup group;
    std::vector<nn::Modulation> own{};
  };
  ModulationShares modulation_shares() const;
  std::set<std::string> names_of(const std::vector<at::Tensor>& parameters) const;
  std::vector<std::vector<at::Tensor>> chunked(const FluxModulations& modulations) const;
  at::Tensor condition(const FluxTransformerInputs& inputs, at::ScalarType dtype);
  at::Tensor time_embedding(const FluxTransformerInputs& inputs, at::ScalarType dtype);
  at::Tensor through(const nn::Linear& layer, const at::Tensor& x) const;
  // Returns the image stream. Without `modulations` every block computes its own from `condition`.
  at::Tensor through_blocks(at::Tensor text, at::Tensor image, const at::Tensor& condition,
                            const std::vector<std::vector<at::Tensor>>& modulations, const flux::Call& call);
  // Two for each double block (image, text), one for each single block, and the last norm's.
  std::vector<nn::Modulation> modulation_layers() const;
  void observe(const std::string& module, const std::vector<at::Tensor>& outputs) const;

  FluxTransformerConfig config_;
  Observer observer_;
  bool gradient_checkpointing_ = false;
  std::set<std::string> modulation_weights_{};  // names of all that `modulations` needs

  Boundary boundary_{nullptr};
  TimeTextEmbedding time_text_embed_{nullptr};
  nn::Linear context_embedder_{nullptr}, x_embedder_{nullptr};
  torch::nn::ModuleList transformer_blocks_{nullptr}, single_transformer_blocks_{nullptr};
  nn::Modulation norm_out_{nullptr};
  nn::Linear proj_out_{nullptr};
};
TORCH_MODULE(FluxTransformer2DModel);

}  // namespace pardiff
