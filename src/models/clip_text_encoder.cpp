#include <ATen/ATen.h>
#include <pardiff/attention/attention.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/nn/linear.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>

#include "io/mapped_reading.h"
#include "models/activation_names.h"
#include "models/config_rules.h"
#include "models/token_ids.h"

namespace pardiff {
namespace {

nn::LayerNormOptions norm_options(const ClipTextConfig& config, const nn::ParameterOptions& parameters) {
  return {.eps = config.layer_norm_eps, .parameters = parameters};
}

class ClipAttentionImpl : public torch::nn::Module {
 public:
  ClipAttentionImpl(const ClipTextConfig& config, const nn::ParameterOptions& parameters)
      : head_dim_(config.hidden_size / config.num_attention_heads) {
    const auto projection = [&](const char* name) {
      return register_module(name,
                             nn::Linear(config.hidden_size, config.hidden_size, nn::LinearOptions{true, parameters}));
    };
    k_proj_ = projection("k_proj");
    v_proj_ = projection("v_proj");
    q_proj_ = projection("q_proj");
    out_proj_ = projection("out_proj");
    attention_ = register_module("attention", Attention());
  }

  at::Tensor forward(const at::Tensor& x) {
    // [B, S, hidden] -> [B, S, H, D]; under tensor parallelism a rank has only its own heads.
    const auto heads_of = [&](nn::Linear& linear) { return linear->forward(x).unflatten(-1, {-1, head_dim_}); };
    const auto query = heads_of(q_proj_), key = heads_of(k_proj_), value = heads_of(v_proj_);
    return out_proj_->forward(attention_->forward(query, key, value, {.is_causal = true}).flatten(2));
  }

 private:
  int64_t head_dim_;
  nn::Linear k_proj_{nullptr}, v_proj_{nullptr}, q_proj_{nullptr}, out_proj_{nullptr};
  Attention attention_{nullptr};
};
TORCH_MODULE(ClipAttention);

class ClipMlpImpl : public torch::nn::Module {
 public:
  ClipMlpImpl(const ClipTextConfig& config, const nn::ParameterOptions& parameters)
      : activation_(activation_named(config.hidden_act)),
        fc1_(register_module(
            "fc1", nn::Linear(config.hidden_size, config.intermediate_size, nn::LinearOptions{true, parameters}))),
        fc2_(register_module(
            "fc2", nn::Linear(config.intermediate_size, config.hidden_size, nn::LinearOptions{true, parameters}))) {}

  at::Tensor forward(const at::Tensor& x) { return fc2_->forward(activation_(fc1_->forward(x))); }

 private:
  Activation activation_;
  nn::Linear fc1_, fc2_;
};
TORCH_MODULE(ClipMlp);

class ClipLayerImpl : public torch::nn::Module {
 public:
  ClipLayerImpl(const ClipTextConfig& config, const nn::ParameterOptions& parameters)
      : layer_norm1_(
            register_module("layer_norm1", nn::LayerNorm(config.hidden_size, norm_options(config, parameters)))),
        self_attn_(register_module("self_attn", ClipAttention(config, parameters))),
        layer_norm2_(
            register_module("layer_norm2", nn::LayerNorm(config.hidden_size, norm_options(config, parameters)))),
        mlp_(register_module("mlp", ClipMlp(config, parameters))) {}

  at::Tensor forward(at::Tensor x) {
    x = x + self_attn_->forward(layer_norm1_->forward(x));
    return x + mlp_->forward(layer_norm2_->forward(x));
  }

 private:
  nn::LayerNorm layer_norm1_;
  ClipAttention self_attn_;
  nn::LayerNorm layer_norm2_;
  ClipMlp mlp_;
};
TORCH_MODULE(ClipLayer);

}  // namespace

ClipTextConfig ClipTextConfig::from_file(const ConfigFile& file) {
  file.expect_class({"CLIPTextModel", "CLIPTextModelWithProjection", "CLIPModel"});
  const ClipTextConfig defaults;
  ClipTextConfig config;
  config.vocab_size = file.positive_integer("vocab_size", defaults.vocab_size, kMaxVocabulary);
  config.hidden_size = file.positive_integer("hidden_size", defaults.hidden_size, kMaxWidth);
  config.intermediate_size = file.positive_integer("intermediate_size", defaults.intermediate_size, kMaxWidth);
  config.projection_dim = file.integer("projection_dim", defaults.projection_dim);
  config.num_hidden_layers = file.positive_integer("num_hidden_layers", defaults.num_hidden_layers, kMaxLayers);
  config.num_attention_heads = file.positive_integer("num_attention_heads", defaults.num_attention_heads, kMaxWidth);
  config.max_position_embeddings =
      file.positive_integer("max_position_embeddings", defaults.max_position_embeddings, kMaxWidth);
  config.hidden_act = file.string("hidden_act", defaults.hidden_act);
  config.layer_norm_eps = file.number("layer_norm_eps", defaults.layer_norm_eps);
  config.pad_token_id = file.integer("pad_token_id", defaults.pad_token_id);
  config.bos_token_id = file.integer("bos_token_id", defaults.bos_token_id);
  config.eos_token_id = file.integer("eos_token_id", defaults.eos_token_id);
  return validated(config, file);
}

std::string ClipTextConfig::to_json() const {
  return nlohmann::ordered_json{
      {"architectures", {"CLIPTextModel"}},
      {"model_type", "clip_text_model"},
      {"vocab_size", vocab_size},
      {"hidden_size", hidden_size},
      {"intermediate_size", intermediate_size},
      {"projection_dim", projection_dim},
      {"num_hidden_layers", num_hidden_layers},
      {"num_attention_heads", num_attention_heads},
      {"max_position_embeddings", max_position_embeddings},
      {"hidden_act", hidden_act},
      {"layer_norm_eps", layer_norm_eps},
      {"pad_token_id", pad_token_id},
      {"bos_token_id", bos_token_id},
      {"eos_token_id", eos_token_id},
  }
      .dump(2);
}

void ClipTextConfig::validate() const {
  require_between("vocab_size", vocab_size, kMaxVocabulary);
  require_between("hidden_size", hidden_size, kMaxWidth);
  require_between("intermediate_size", intermediate_size, kMaxWidth);
  require_between("num_hidden_layers", num_hidden_layers, kMaxLayers);
  require_between("max_position_embeddings", max_position_embeddings, kMaxWidth);
  require_between("num_attention_heads", num_attention_heads, kMaxWidth);
  require_divides("hidden_size", hidden_size, "num_attention_heads", num_attention_heads);
  require_one_of("hidden_act", hidden_act, activation_names());
  require_positive("layer_norm_eps", layer_norm_eps);
}

ClipTextModelImpl::ClipTextModelImpl(const ClipTextConfig& config, const nn::ParameterOptions& parameters)
    : Model("CLIPTextModel"), config_(config) {
  config.validate();
  const auto embeddings = register_module("embeddings", std::make_shared<torch::nn::Module>("CLIPTextEmbeddings"));
  token_embedding_ =
      embeddings->register_module("token_embedding", nn::Embedding(config.vocab_size, config.hidden_size, parameters));
  position_embedding_ = embeddings->register_module(
      "position_embedding", nn::Embedding(config.max_position_embeddings, config.hidden_size, parameters));
  const auto encoder = register_module("encoder", std::make_shared<torch::nn::Module>("CLIPEncoder"));
  layers_ = encoder->register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers_->push_back(ClipLayer(config, parameters));
  final_layer_norm_ =
      register_module("final_layer_norm", nn::LayerNorm(config.hidden_size, norm_options(config, parameters)));
}

at::Tensor ClipTextModelImpl::end_of_text(const at::Tensor& input_ids) const {
  const bool highest_id = config_.eos_token_id == 2;
  // argmax gives the first of equal values, so also 0 where no position matches.
  return at::argmax(highest_id ? input_ids : input_ids.eq(config_.eos_token_id).to(at::kInt), -1);
}

ClipTextOutput ClipTextModelImpl::forward(const at::Tensor& input_ids) {
  const MappedReading reading;
  check_token_ids(input_ids, class_name(), config_.vocab_size, config_.max_position_embeddings);
  const auto positions = at::arange(input_ids.size(1), input_ids.options());
  auto x = token_embedding_->forward(input_ids) + position_embedding_->forward(positions);
  for (const auto& layer : *layers_) x = layer->as<ClipLayer>()->forward(x);
  ClipTextOutput output{.last_hidden_state = final_layer_norm_->forward(x), .pooler_output = {}};
  const auto rows = at::arange(input_ids.size(0), input_ids.options().dtype(at::kLong));
  output.pooler_output = output.last_hidden_state.index({rows, end_of_text(input_ids)});
  reading.finish();
  return output;
}

TensorParallelPlan ClipTextModelImpl::tensor_parallel_plan() const {
  TensorParallelPlan plan;
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.fc1"}) {
    plan.emplace("encoder.layers.*." + std::string(name), "colwise");
  }
  for (const char* name : {"self_attn.out_proj", "mlp.fc2"}) {
    plan.emplace("encoder.layers.*." + std::string(name), "rowwise");
  }
  return plan;
}

LoadOptions ClipTextModelImpl::load_options(std::optional<at::ScalarType> dtype) const {
  LoadOptions options;
  options.dtype = dtype;
  options.other_names = [](const std::string& name) { return std::vector<std::string>{"text_model." + name}; };
  options.ignored = {"embeddings.position_ids", "text_model.embeddings.position_ids"};
  return options;
}

}  // namespace pardiff
