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

/// config.json of a T5 encoder, with the names and defaults of transformers.
struct T5Config {
  int64_t vocab_size = 32128;
  int64_t d_model = 512;
  int64_t d_kv = 64;
  int64_t d_ff = 2048;
  int64_t num_layers = 6;
  int64_t num_heads = 8;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double layer_norm_epsilon = 1e-6;
  /// "relu", "gated-gelu", or another activation with or without "gated-". "gated-gelu" means gelu_new.
  std::string feed_forward_proj = "relu";
  int64_t pad_token_id = 0;
  int64_t eos_token_id = 1;

  /// Throws: CheckpointError for a value of the wrong type, or one that `validate` refuses.
  static T5Config from_file(const ConfigFile& file);
  /// What transformers reads back.
  std::string to_json() const;
  /// Throws: ConfigError for sizes that do not fit one another, or an unknown activation (the message lists those
  /// known).
  void validate() const;

  bool is_gated() const;
  /// The activation's own name: "gelu_new" for "gated-gelu".
  std::string activation() const;
};

/// The encoder half of T5 (version 1.1 when gated): pre-norm, without biases, attention not scaled, positions as one
/// learned bias on the scores that all blocks share.
class T5EncoderModelImpl : public Model {
 public:
  /// Throws: ConfigError as T5Config::validate.
  /// Precision: in float16 the last Linear of every feed-forward (`wo`) is made in float32, as the reference keeps it.
  explicit T5EncoderModelImpl(const T5Config& config, const nn::ParameterOptions& parameters = {});

  /// No token is masked: padding is attended to and stays in the result.
  /// Shapes: input_ids [B, S]; returns [B, S, d_model].
  /// Throws: ShapeError; ConfigError for a token outside the vocabulary.
  /// Source: Raffel et al. 2020, arXiv 1910.10683; Shazeer 2020, arXiv 2002.05202.
  at::Tensor forward(const at::Tensor& input_ids);

  const T5Config& config() const { return config_; }
  std::string class_name() const override { return "T5EncoderModel"; }
  std::string config_json() const override { return config_.to_json(); }
  TensorParallelPlan tensor_parallel_plan() const override;
  int64_t attention_heads() const override { return config_.num_heads; }
  /// Accepts the token table as shared.weight, as encoder.embed_tokens.weight or as both; under float16 keeps `wo` in
  /// float32.
  LoadOptions load_options(std::optional<at::ScalarType> dtype = {}) const;

 private:
  T5Config config_;
  nn::Embedding shared_{nullptr};
  torch::nn::ModuleList block_{nullptr};
  nn::RMSNorm final_layer_norm_{nullptr};
};
TORCH_MODULE(T5EncoderModel);

}  // namespace pardiff
