#include <ATen/ATen.h>
#include <pardiff/models/autoencoder_kl.h>

#include <nlohmann/json.hpp>

#include "io/mapped_reading.h"
#include "models/autoencoder_kl_blocks.h"
#include "models/config_rules.h"

namespace pardiff {
namespace {

constexpr const char* kDownBlock = "DownEncoderBlock2D";
constexpr const char* kUpBlock = "UpDecoderBlock2D";

void require_block_types(const std::string& key, const std::vector<std::string>& types, const std::string& known,
                         size_t levels) {
  for (const auto& type : types) require_one_of(key, type, {known});
  check<ConfigError>(types.size() == levels, key, " has ", types.size(), " entries but block_out_channels has ", levels,
                     ". Give one entry per level.");
}

nn::Conv2d pointwise(int64_t channels, const nn::ParameterOptions& parameters) {
  return nn::Conv2d(channels, channels, 1, nn::Conv2dOptions{.parameters = parameters});
}

void append_names(std::vector<std::string>& names, const std::string& prefix, const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters()) names.push_back(prefix + "." + parameter.key());
}

// How files from before 2023 call the attention's projections.
std::vector<std::string> older_names(const std::string& name) {
  constexpr std::pair<const char*, const char*> kRenamed[] = {
      {".to_q.", ".query."}, {".to_k.", ".key."}, {".to_v.", ".value."}, {".to_out.0.", ".proj_attn."}};
  for (const auto& [current, older] : kRenamed) {
    const auto at = name.find(current);
    if (at != std::string::npos) return {std::string(name).replace(at, std::string(current).size(), older)};
  }
  return {};
}

void check_picture(const at::Tensor& x, const char* what, int64_t channels, int64_t least_side) {
  check<ShapeError>(x.defined() && x.dim() == 4 && x.size(0) > 0 && x.size(1) == channels && x.size(2) >= least_side &&
                        x.size(3) >= least_side,
                    "AutoencoderKL was given ", what, " of shape ",
                    x.defined() ? text_of(x.sizes()) : std::string("nothing"), ". Give a tensor [batch, ", channels,
                    ", height, width] with sides of at least ", least_side, ".");
}

}  // namespace

AutoencoderKLConfig AutoencoderKLConfig::from_file(const ConfigFile& file) {
  file.expect_class({"AutoencoderKL"});
  const AutoencoderKLConfig defaults;
  AutoencoderKLConfig config;
  config.in_channels = file.positive_integer("in_channels", defaults.in_channels, kMaxWidth);
  config.out_channels = file.positive_integer("out_channels", defaults.out_channels, kMaxWidth);
  config.down_block_types = file.strings("down_block_types", defaults.down_block_types);
  config.up_block_types = file.strings("up_block_types", defaults.up_block_types);
  config.block_out_channels = file.integers("block_out_channels", defaults.block_out_channels);
  config.layers_per_block = file.positive_integer("layers_per_block", defaults.layers_per_block, kMaxLayers);
  config.act_fn = file.string("act_fn", defaults.act_fn);
  config.latent_channels = file.positive_integer("latent_channels", defaults.latent_channels, kMaxWidth);
  config.norm_num_groups = file.positive_integer("norm_num_groups", defaults.norm_num_groups, kMaxWidth);
  config.sample_size = file.integer("sample_size", defaults.sample_size);
  config.scaling_factor = file.number("scaling_factor", defaults.scaling_factor);
  config.shift_factor = file.number("shift_factor", defaults.shift_factor);
  config.force_upcast = file.boolean("force_upcast", defaults.force_upcast);
  config.use_quant_conv = file.boolean("use_quant_conv", defaults.use_quant_conv);
  config.use_post_quant_conv = file.boolean("use_post_quant_conv", defaults.use_post_quant_conv);
  config.mid_block_add_attention = file.boolean("mid_block_add_attention", defaults.mid_block_add_attention);
  return validated(config, file);
}

std::string AutoencoderKLConfig::to_json() const {
  return nlohmann::ordered_json{
      {"_class_name", "AutoencoderKL"},
      {"in_channels", in_channels},
      {"out_channels", out_channels},
      {"down_block_types", down_block_types},
      {"up_block_types", up_block_types},
      {"block_out_channels", block_out_channels},
      {"layers_per_block", layers_per_block},
      {"act_fn", act_fn},
      {"latent_channels", latent_channels},
      {"norm_num_groups", norm_num_groups},
      {"sample_size", sample_size},
      {"scaling_factor", scaling_factor},
      {"shift_factor", shift_factor},
      {"latents_mean", nullptr},
      {"latents_std", nullptr},
      {"force_upcast", force_upcast},
      {"use_quant_conv", use_quant_conv},
      {"use_post_quant_conv", use_post_quant_conv},
      {"mid_block_add_attention", mid_block_add_attention},
  }
      .dump(2);
}

void AutoencoderKLConfig::validate() const {
  require_between("in_channels", in_channels, kMaxWidth);
  require_between("out_channels", out_channels, kMaxWidth);
  require_between("latent_channels", latent_channels, kMaxWidth);
  require_between("layers_per_block", layers_per_block, kMaxLayers);
  require_between("norm_num_groups", norm_num_groups, kMaxWidth);
  const auto levels = block_out_channels.size();
  // Every level halves the sides.
  check<ConfigError>(levels >= 1 && levels <= 16, "block_out_channels has ", levels, " entries. Give 1 to 16 levels.");
  for (const auto channels : block_out_channels) {
    require_between("an entry of block_out_channels", channels, kMaxWidth);
    require_divides("an entry of block_out_channels", channels, "norm_num_groups", norm_num_groups);
  }
  require_block_types("down_block_types", down_block_types, kDownBlock, levels);
  require_block_types("up_block_types", up_block_types, kUpBlock, levels);
  require_one_of("act_fn", act_fn, {"silu", "swish"});
  require_positive("scaling_factor", scaling_factor);
}

at::Tensor LatentDistribution::sample(const at::Tensor& noise) const { return mean + at::exp(0.5 * logvar) * noise; }

AutoencoderKLImpl::AutoencoderKLImpl(const AutoencoderKLConfig& config, const nn::ParameterOptions& parameters,
                                     AutoencoderParts parts)
    : Model("AutoencoderKL"), config_(config) {
  config.validate();
  if (parts != AutoencoderParts::kDecoder) {
    encoder_ = register_module("encoder", std::make_shared<VaeEncoderImpl>(config, parameters));
    if (config.use_quant_conv) {
      quant_conv_ = register_module("quant_conv", pointwise(2 * config.latent_channels, parameters));
    }
  }
  if (parts != AutoencoderParts::kEncoder) {
    decoder_ = register_module("decoder", std::make_shared<VaeDecoderImpl>(config, parameters));
    if (config.use_post_quant_conv) {
      post_quant_conv_ = register_module("post_quant_conv", pointwise(config.latent_channels, parameters));
    }
  }
}

at::Tensor AutoencoderKLImpl::decode(const at::Tensor& latents, const ProcessGroup& ranks) {
  check<ConfigError>(decoder_ != nullptr,
                     "this AutoencoderKL was made without its decoder. Make it with "
                     "AutoencoderParts::kAll or kDecoder.");
  check_picture(latents, "latents", config_.latent_channels, 1);
  const auto decoded = [&](const at::Tensor& some) {
    return decoder_->forward(post_quant_conv_ ? post_quant_conv_->forward(some) : some, ranks);
  };
  if (ranks.size() == 1) return with_whole_files([&] { return decoded(latents); });
  const at::NoGradGuard no_grad;
  return with_whole_files([&] {
    std::vector<at::Tensor> pictures;  // one at a time: a picture is what the ranks share
    for (const auto& one : latents.split(1)) pictures.push_back(decoded(one));
    return at::cat(pictures);
  });
}

LatentDistribution AutoencoderKLImpl::encode(const at::Tensor& image) {
  check<ConfigError>(encoder_ != nullptr,
                     "this AutoencoderKL was made without its encoder. Make it with "
                     "AutoencoderParts::kAll or kEncoder.");
  check_picture(image, "a picture", config_.in_channels, config_.scale_factor());
  const auto halves = with_whole_files([&] {
    const auto moments = encoder_->forward(image);
    return (quant_conv_ ? quant_conv_->forward(moments) : moments).chunk(2, 1);
  });
  return {.mean = halves[0], .logvar = at::clamp(halves[1], -30.0, 20.0)};
}

at::Tensor AutoencoderKLImpl::unscaled(const at::Tensor& latents) const {
  return latents / config_.scaling_factor + config_.shift_factor;
}

at::Tensor AutoencoderKLImpl::scaled(const at::Tensor& latents) const {
  return (latents - config_.shift_factor) * config_.scaling_factor;
}

std::string AutoencoderKLImpl::config_json() const {
  check<ConfigError>(encoder_ && decoder_, "this AutoencoderKL holds only its ", encoder_ ? "encoder" : "decoder",
                     ", which config.json cannot say. Make it with AutoencoderParts::kAll.");
  return config_.to_json();
}

LoadOptions AutoencoderKLImpl::load_options(std::optional<at::ScalarType> dtype) const {
  LoadOptions options;
  options.dtype = dtype;
  options.other_names = older_names;
  const nn::ParameterOptions no_memory{.allocate = false};
  if (!encoder_) {
    append_names(options.ignored, "encoder", VaeEncoderImpl(config_, no_memory));
    append_names(options.ignored, "quant_conv", *pointwise(2 * config_.latent_channels, no_memory));
  }
  if (!decoder_) {
    append_names(options.ignored, "decoder", VaeDecoderImpl(config_, no_memory));
    append_names(options.ignored, "post_quant_conv", *pointwise(config_.latent_channels, no_memory));
  }
  for (auto names = options.ignored; const auto& name : names) {
    for (auto& older : older_names(name)) options.ignored.push_back(std::move(older));
  }
  return options;
}

}  // namespace pardiff
