#pragma once
#include <pardiff/io/config_file.h>
#include <pardiff/models/load.h>
#include <pardiff/models/model.h>
#include <pardiff/nn/embedding.h>
#include <pardiff/nn/norm.h>
#include <pardiff/nn/parameter.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <string>

namespace pardiff {

/// config.json of a CLIP text encoder, with the names and defaults of transformers.
struct ClipTextConfig {
  int64_t vocab_size = 49408;
  int64_t hidden_size = 512;
  int64_t intermediate_size = 2048;
  int64_t projection_dim = 512;  // not used by this model; kept for the file
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 8;
  int64_t max_position_embeddings = 77;
  std::string hidden_act = "quick_gelu";
  double layer_norm_eps = 1e-5;
  int64_t pad_token_id = 1;
  int64_t bos_token_id = 49406;
  /// 2 stands for "the highest id of the sequence", as the first CLIP files mean it.
  int64_t eos_token_id = 49407;

  /// Throws: CheckpointError for a value of the wrong type, or one that `validate` refuses.
  static ClipTextConfig from_file(const ConfigFile& file);
  /// What transformers reads back.
  std::string to_json() const;
  /// Throws: ConfigError for sizes that do not fit one another, or an unknown activation (the message lists those
  /// known).
  void validate() const;
};

struct ClipTextOutput {
  at::Tensor last_hidden_state;  // [B, S, hidden_size], after the final norm
  at::Tensor pooler_output;      // [B, hidden_size], the state at the end-of-text token
};

/// The text half of CLIP: causal, pre-norm, without projection.
class ClipTextModelImpl : public Model {
 public:
  /// Throws: ConfigError as ClipTextConfig::validate.
  explicit ClipTextModelImpl(const ClipTextConfig& config, const nn::ParameterOptions& parameters = {});

  /// Shapes: input_ids [B, S], S at most max_position_embeddings.
  /// Throws: ShapeError; ConfigError for a token outside the vocabulary.
  /// Source: Radford et al. 2021, arXiv 2103.00020.
  ClipTextOutput forward(const at::Tensor& input_ids);

  const ClipTextConfig& config() const { return config_; }
  std::string class_name() const override { return "CLIPTextModel"; }
  std::string config_json() const override { return config_.to_json(); }
  TensorParallelPlan tensor_parallel_plan() const override;
  int64_t attention_heads() const override { return config_.num_attention_heads; }
  /// Accepts names with and without `text_model.`, and the position ids that older files carry.
  LoadOptions load_options(std::optional<at::ScalarType> dtype = {}) const;

 private:
  at::Tensor end_of_text(const at::Tensor& input_ids) const;

  ClipTextConfig config_;
  nn::Embedding token_embedding_{nullptr}, position_embedding_{nullptr};
  torch::nn::ModuleList layers_{nullptr};
  nn::LayerNorm final_layer_norm_{nullptr};
};
TORCH_MODULE(ClipTextModel);

}  // namespace pardiff
