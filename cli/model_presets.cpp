#include "cli/model_presets.h"

#include <pardiff/core/check.h>
#include <pardiff/io/config_file.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;

AutoencoderKLConfig vae_with(const std::vector<int64_t>& channels, int64_t groups) {
  AutoencoderKLConfig vae;
  vae.down_block_types.assign(channels.size(), "DownEncoderBlock2D");
  vae.up_block_types.assign(channels.size(), "UpDecoderBlock2D");
  vae.block_out_channels = channels;
  vae.layers_per_block = 2;
  vae.latent_channels = 16;
  vae.norm_num_groups = groups;
  vae.sample_size = 1024;
  vae.scaling_factor = 0.3611;
  vae.shift_factor = 0.1159;
  vae.use_quant_conv = false;
  vae.use_post_quant_conv = false;
  return vae;
}

FluxConfigs flux_dev() {
  FluxConfigs configs;
  configs.transformer.guidance_embeds = true;
  configs.text_encoder = {
      .hidden_size = 768, .intermediate_size = 3072, .projection_dim = 768, .num_attention_heads = 12};
  configs.text_encoder_2 = {
      .d_model = 4096, .d_ff = 10240, .num_layers = 24, .num_heads = 64, .feed_forward_proj = "gated-gelu"};
  configs.vae = vae_with({128, 256, 512, 512}, 32);
  configs.scheduler.shift = 3.0;
  configs.scheduler.use_dynamic_shifting = true;
  return configs;
}

FluxConfigs flux_schnell() {
  auto configs = flux_dev();
  configs.transformer.guidance_embeds = false;
  configs.scheduler = {};
  return configs;
}

// Large enough to measure with, small enough for any machine.
FluxConfigs bench() {
  auto configs = flux_dev();
  configs.transformer.num_layers = 4;
  configs.transformer.num_single_layers = 8;
  configs.transformer.attention_head_dim = 64;
  configs.transformer.num_attention_heads = 12;
  configs.transformer.joint_attention_dim = 512;
  configs.transformer.pooled_projection_dim = 256;
  configs.transformer.axes_dims_rope = {8, 28, 28};
  configs.text_encoder = {.hidden_size = 256,
                          .intermediate_size = 512,
                          .projection_dim = 256,
                          .num_hidden_layers = 4,
                          .num_attention_heads = 4};
  configs.text_encoder_2 = {
      .d_model = 512, .d_ff = 1024, .num_layers = 6, .num_heads = 8, .feed_forward_proj = "gated-gelu"};
  configs.vae = vae_with({32, 64, 128, 128}, 8);
  return configs;
}

struct Preset {
  const char* name;
  FluxConfigs (*make)();
};
constexpr Preset kPresets[] = {{"flux-dev", flux_dev}, {"flux-schnell", flux_schnell}, {"bench", bench}};

// `open` gives the config of a part by its name.
template <typename Open>
FluxConfigs read_configs(const Open& open) {
  return {FluxTransformerConfig::from_file(open("transformer")), ClipTextConfig::from_file(open("text_encoder")),
          T5Config::from_file(open("text_encoder_2")), AutoencoderKLConfig::from_file(open("vae")),
          FlowMatchEulerConfig::from_file(open("scheduler"))};
}

FluxConfigs configs_in_folder(const fs::path& folder) {
  return read_configs([&](const std::string& part) {
    return ConfigFile::open(folder / part / (part == "scheduler" ? "scheduler_config.json" : "config.json"));
  });
}

FluxConfigs configs_in_file(const fs::path& path) {
  ConfigFile::open(path);  // says what is wrong with a damaged file
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  return read_configs([&](const std::string& part) {
    check<CheckpointError>(json.contains(part) && json[part].is_object(), path.string(), " has no object '", part,
                           "'. Give one for each of transformer, text_encoder, text_encoder_2, vae and scheduler.");
    return ConfigFile::parse(json[part].dump(), path.string() + ": " + part);
  });
}

void check_equal(const char* name, int64_t value, const char* other_name, int64_t other) {
  check<ConfigError>(value == other, name, " is ", value, ", and ", other_name, " is ", other, ". Make them equal.");
}

}  // namespace

void FluxConfigs::validate() const {
  transformer.validate();
  text_encoder.validate();
  text_encoder_2.validate();
  vae.validate();
  scheduler.validate();
  check_equal("the transformer's joint_attention_dim", transformer.joint_attention_dim, "text_encoder_2's d_model",
              text_encoder_2.d_model);
  check_equal("the transformer's pooled_projection_dim", transformer.pooled_projection_dim,
              "text_encoder's hidden_size", text_encoder.hidden_size);
  check_equal("the transformer's in_channels", transformer.in_channels, "4 times the VAE's latent_channels",
              4 * vae.latent_channels);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

FluxConfigs flux_configs(const std::string& preset_or_config) {
  for (const auto& preset : kPresets) {
    if (preset_or_config == preset.name) return preset.make();
  }
  std::error_code ignored;
  check<UsageError>(fs::exists(preset_or_config, ignored), "'", preset_or_config,
                    "' is neither a preset nor a folder or file. Use one of ", joined(preset_names()),
                    ", a folder in the diffusers layout, or a JSON file.");
  auto configs = fs::is_directory(preset_or_config, ignored) ? configs_in_folder(preset_or_config)
                                                             : configs_in_file(preset_or_config);
  configs.validate();
  return configs;
}

}  // namespace pardiff::cli
