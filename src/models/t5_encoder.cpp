#include <ATen/ATen.h>
#include <pardiff/attention/attention.h>
#include <pardiff/models/t5_encoder.h>
#include <pardiff/nn/linear.h>
#include <pardiff/nn/tensor_parallel.h>
#include <torch/nn/module.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/mapped_reading.h"
#include "models/activation_names.h"
#include "models/config_rules.h"
#include "models/token_ids.h"

namespace pardiff {
namespace {

constexpr const char* kGated = "gated-";

nn::RMSNorm norm(const T5Config& config, const nn::ParameterOptions& parameters) {
  return nn::RMSNorm(config.d_model, nn::RMSNormOptions{.eps = config.layer_norm_epsilon,
                                                        .rounding = nn::RmsRounding::kBeforeWeight,
                                                        .parameters = parameters});
}

nn::Linear linear(int64_t in_features, int64_t out_features, const nn::ParameterOptions& parameters) {
  return nn::Linear(in_features, out_features, nn::LinearOptions{.bias = false, .parameters = parameters});
}

// float16 has no room for the outliers of the residual stream: what has overflowed comes back just inside its range.
at::Tensor within_half(const at::Tensor& x) {
  if (x.scalar_type() != at::kHalf) return x;
  constexpr double kMax = 65504;
  const auto bound = at::where(at::isinf(x).any(), kMax - 1000, kMax).to(at::kHalf);
  return at::clamp(x, -bound, bound);
}

// The bucket of every distance key - query from -(length-1) to length-1. Half of the buckets are for keys that follow
// the query; of each half, one half counts single steps, and the rest grows logarithmically up to the largest distance.
at::Tensor buckets_of_distances(int64_t length, const T5Config& config, const at::Device& device) {
  const int64_t half = config.relative_attention_num_buckets / 2, exact = half / 2;
  const auto distances = at::arange(1 - length, length, at::TensorOptions(at::kLong).device(device));
  const auto steps = distances.abs();
  const double range = std::log(static_cast<double>(config.relative_attention_max_distance) / exact);
  const auto octaves = at::log(steps.to(at::kFloat) / exact) / range;
  // Distance 0 gives -inf, which no integer holds; it is below `exact` and never taken from here.
  const auto far = exact + (octaves * (half - exact)).clamp_min(0).to(at::kLong);
  const auto bucket = at::where(steps < exact, steps, far.clamp_max(half - 1));
  return bucket + half * (distances > 0).to(at::kLong);  // [2 length - 1]
}

class T5AttentionImpl : public torch::nn::Module {
 public:
  T5AttentionImpl(const T5Config& config, bool has_relative_attention_bias, const nn::ParameterOptions& parameters)
      : config_(config) {
    const int64_t inner = config.num_heads * config.d_kv;
    q_ = register_module("q", linear(config.d_model, inner, parameters));
    k_ = register_module("k", linear(config.d_model, inner, parameters));
    v_ = register_module("v", linear(config.d_model, inner, parameters));
    o_ = register_module("o", linear(inner, config.d_model, parameters));
    attention_ = register_module("attention", Attention());
    if (!has_relative_attention_bias) return;
    relative_attention_bias_ = register_module(
        "relative_attention_bias", nn::Embedding(config.relative_attention_num_buckets, config.num_heads, parameters));
  }

  // Shapes: returns [1, H, length, length], where H are this rank's heads.
  at::Tensor position_bias(int64_t length) {
    const auto table = local_heads(relative_attention_bias_->weight);
    const auto of_distance = table.index_select(0, buckets_of_distances(length, config_, table.device()));
    // Row i of the bias is the stretch of distances from -i to length-1-i, so its windows stand in reverse order.
    return of_distance.t().contiguous().unfold(1, length, 1).flip(1).unsqueeze(0);
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& position_bias) {
    const auto heads_of = [&](nn::Linear& projection) {  // [B, S, d_model] -> [B, S, H, d_kv]
      return projection->forward(x).unflatten(-1, {-1, config_.d_kv});
    };
    const auto query = heads_of(q_), key = heads_of(k_), value = heads_of(v_);
    return o_->forward(attend(query, key, value, position_bias).flatten(2));
  }

 private:
  at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const at::Tensor& position_bias) {
    constexpr double kScale = 1.0;
    if (!position_bias.requires_grad()) {
      return attention_->forward(query, key, value, {.mask = position_bias, .scale = kScale});
    }
    // Attention kernels give no gradient to a mask, and here the mask is what the bias table learns through.
    const auto out = at::scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                                                      position_bias, 0.0, false, kScale);
    return out.transpose(1, 2);  // [B, H, S, d_kv] -> [B, S, H, d_kv]
  }

  // The columns of the heads that this rank has once its query projection is cut. The table itself stays whole.
  at::Tensor local_heads(const at::Tensor& table) const {
    const auto& sharding = q_->sharding;
    if (sharding.style != nn::ShardStyle::kColumn) return table;
    const int64_t heads = q_->weight.size(0) / config_.d_kv;
    return nn::copy_to_group(table, sharding.group).narrow(1, sharding.group.rank() * heads, heads);
  }

  T5Config config_;
  nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  nn::Embedding relative_attention_bias_{nullptr};
  Attention attention_{nullptr};
};
TORCH_MODULE(T5Attention);

class T5SelfAttentionLayerImpl : public torch::nn::Module {
 public:
  T5SelfAttentionLayerImpl(const T5Config& config, bool has_relative_attention_bias,
                           const nn::ParameterOptions& parameters)
      : attention(register_module("SelfAttention", T5Attention(config, has_relative_attention_bias, parameters))),
        layer_norm_(register_module("layer_norm", norm(config, parameters))) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& position_bias) {
    return within_half(x + attention->forward(layer_norm_->forward(x), position_bias));
  }

  T5Attention attention;

 private:
  nn::RMSNorm layer_norm_;
};
TORCH_MODULE(T5SelfAttentionLayer);

class T5DenseImpl : public torch::nn::Module {
 public:
  T5DenseImpl(const T5Config& config, const nn::ParameterOptions& parameters)
      : activation_(activation_named(config.activation())) {
    if (config.is_gated()) {
      wi_ = register_module("wi_0", linear(config.d_model, config.d_ff, parameters));
      gated_ = register_module("wi_1", linear(config.d_model, config.d_ff, parameters));
    } else {
      wi_ = register_module("wi", linear(config.d_model, config.d_ff, parameters));
    }
    auto wide = parameters;
    if (wide.dtype == at::kHalf) wide.dtype = at::kFloat;
    wo_ = register_module("wo", linear(config.d_ff, config.d_model, wide));
  }

  at::Tensor forward(const at::Tensor& x) {
    auto hidden = activation_(wi_->forward(x));
    if (gated_) hidden = at::GradMode::is_enabled() ? hidden * gated_->forward(x) : hidden.mul_(gated_->forward(x));
    return wo_->forward(hidden.to(wo_->weight.scalar_type()));
  }

 private:
  Activation activation_;
  nn::Linear wi_{nullptr}, gated_{nullptr}, wo_{nullptr};
};
TORCH_MODULE(T5Dense);

class T5FeedForwardLayerImpl : public torch::nn::Module {
 public:
  T5FeedForwardLayerImpl(const T5Config& config, const nn::ParameterOptions& parameters)
      : dense_(register_module("DenseReluDense", T5Dense(config, parameters))),
        layer_norm_(register_module("layer_norm", norm(config, parameters))) {}

  at::Tensor forward(const at::Tensor& x) { return within_half(x + dense_->forward(layer_norm_->forward(x))); }

 private:
  T5Dense dense_;
  nn::RMSNorm layer_norm_;
};
TORCH_MODULE(T5FeedForwardLayer);

class T5BlockImpl : public torch::nn::Module {
 public:
  T5BlockImpl(const T5Config& config, bool has_relative_attention_bias, const nn::ParameterOptions& parameters)
      : self_attention(config, has_relative_attention_bias, parameters), feed_forward_(config, parameters) {
    const auto layer = register_module("layer", torch::nn::ModuleList());
    layer->push_back(self_attention);
    layer->push_back(feed_forward_);
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& position_bias) {
    return feed_forward_->forward(self_attention->forward(x, position_bias));
  }

  T5SelfAttentionLayer self_attention;

 private:
  T5FeedForwardLayer feed_forward_;
};
TORCH_MODULE(T5Block);

}  // namespace

bool T5Config::is_gated() const { return feed_forward_proj.starts_with(kGated); }

std::string T5Config::activation() const {
  if (feed_forward_proj == "gated-gelu") return "gelu_new";
  return is_gated() ? feed_forward_proj.substr(std::string(kGated).size()) : feed_forward_proj;
}

T5Config T5Config::from_file(const ConfigFile& file) {
  file.expect_class({"T5EncoderModel", "T5ForConditionalGeneration", "T5Model", "MT5EncoderModel"});
  const T5Config defaults;
  T5Config config;
  config.vocab_size = file.positive_integer("vocab_size", defaults.vocab_size, kMaxVocabulary);
  config.d_model = file.positive_integer("d_model", defaults.d_model, kMaxWidth);
  config.d_kv = file.positive_integer("d_kv", defaults.d_kv, kMaxWidth);
  config.d_ff = file.positive_integer("d_ff", defaults.d_ff, kMaxWidth);
  config.num_layers = file.positive_integer("num_layers", defaults.num_layers, kMaxLayers);
  config.num_heads = file.positive_integer("num_heads", defaults.num_heads, kMaxWidth);
  config.relative_attention_num_buckets =
      file.positive_integer("relative_attention_num_buckets", defaults.relative_attention_num_buckets, kMaxWidth);
  config.relative_attention_max_distance =
      file.positive_integer("relative_attention_max_distance", defaults.relative_attention_max_distance, kMaxWidth);
  config.layer_norm_epsilon = file.number("layer_norm_epsilon", defaults.layer_norm_epsilon);
  config.feed_forward_proj = file.string("feed_forward_proj", defaults.feed_forward_proj);
  config.pad_token_id = file.integer("pad_token_id", defaults.pad_token_id);
  config.eos_token_id = file.integer("eos_token_id", defaults.eos_token_id);
  return validated(config, file);
}

std::string T5Config::to_json() const {
  return nlohmann::ordered_json{
      {"architectures", {"T5EncoderModel"}},
      {"model_type", "t5"},
      {"is_encoder_decoder", false},
      {"use_cache", false},
      {"tie_word_embeddings", false},
      {"vocab_size", vocab_size},
      {"d_model", d_model},
      {"d_kv", d_kv},
      {"d_ff", d_ff},
      {"num_layers", num_layers},
      {"num_heads", num_heads},
      {"relative_attention_num_buckets", relative_attention_num_buckets},
      {"relative_attention_max_distance", relative_attention_max_distance},
      {"layer_norm_epsilon", layer_norm_epsilon},
      {"feed_forward_proj", feed_forward_proj},
      {"pad_token_id", pad_token_id},
      {"eos_token_id", eos_token_id},
  }
      .dump(2);
}

void T5Config::validate() const {
  require_between("vocab_size", vocab_size, kMaxVocabulary);
  require_between("d_model", d_model, kMaxWidth);
  require_between("d_kv", d_kv, kMaxWidth);
  require_between("d_ff", d_ff, kMaxWidth);
  require_between("num_layers", num_layers, kMaxLayers);
  require_between("num_heads", num_heads, kMaxWidth);
  check<ConfigError>(relative_attention_num_buckets >= 4 && relative_attention_num_buckets <= kMaxWidth,
                     "relative_attention_num_buckets is ", relative_attention_num_buckets,
                     ". Give at least 4: two directions with single steps and longer ones.");
  check<ConfigError>(relative_attention_max_distance > relative_attention_num_buckets / 4,
                     "relative_attention_max_distance is ", relative_attention_max_distance,
                     ", within the single steps of ", relative_attention_num_buckets, " buckets. Give more than ",
                     relative_attention_num_buckets / 4, ".");
  require_positive("layer_norm_epsilon", layer_norm_epsilon);
  check<ConfigError>(is_gated() || feed_forward_proj.find('-') == std::string::npos, "feed_forward_proj is \"",
                     feed_forward_proj, "\". Give \"gated-ACTIVATION\" or \"ACTIVATION\".");
  require_one_of("the activation of feed_forward_proj", activation(), activation_names());
}

T5EncoderModelImpl::T5EncoderModelImpl(const T5Config& config, const nn::ParameterOptions& parameters)
    : Model("T5EncoderModel"), config_(config) {
  config.validate();
  shared_ = register_module("shared", nn::Embedding(config.vocab_size, config.d_model, parameters));
  const auto encoder = register_module("encoder", std::make_shared<torch::nn::Module>("T5Stack"));
  block_ = encoder->register_module("block", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.num_layers; ++i) block_->push_back(T5Block(config, i == 0, parameters));
  final_layer_norm_ = encoder->register_module("final_layer_norm", norm(config, parameters));
}

at::Tensor T5EncoderModelImpl::forward(const at::Tensor& input_ids) {
  const MappedReading reading;
  check_token_ids(input_ids, class_name(), config_.vocab_size, 0);
  const auto first = block_->ptr<T5BlockImpl>(0);
  const auto position_bias = first->self_attention->attention->position_bias(input_ids.size(1));
  auto x = shared_->forward(input_ids);
  for (const auto& block : *block_) x = block->as<T5Block>()->forward(x, position_bias);
  x = final_layer_norm_->forward(x);
  reading.finish();
  return x;
}

TensorParallelPlan T5EncoderModelImpl::tensor_parallel_plan() const {
  const std::string attention = "encoder.block.*.layer.0.SelfAttention.",
                    dense = "encoder.block.*.layer.1.DenseReluDense.";
  TensorParallelPlan plan = {{attention + "q", "colwise"},
                             {attention + "k", "colwise"},
                             {attention + "v", "colwise"},
                             {attention + "o", "rowwise"},
                             {dense + "wo", "rowwise"}};
  if (config_.is_gated()) {
    plan.emplace(dense + "wi_0", "colwise");
    plan.emplace(dense + "wi_1", "colwise");
  } else {
    plan.emplace(dense + "wi", "colwise");
  }
  return plan;
}

LoadOptions T5EncoderModelImpl::load_options(std::optional<at::ScalarType> dtype) const {
  LoadOptions options;
  options.dtype = dtype;
  options.other_names = [](const std::string& name) {
    return name == "shared.weight" ? std::vector<std::string>{"encoder.embed_tokens.weight"}
                                   : std::vector<std::string>{};
  };
  options.ignored = {"encoder.embed_tokens.weight"};
  options.dtype_of = [](const std::string& name, at::ScalarType wanted) {
    return wanted == at::kHalf && name.ends_with(".wo.weight") ? at::kFloat : wanted;
  };
  return options;
}

}  // namespace pardiff
