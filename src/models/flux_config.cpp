#include <pardiff/core/check.h>
#include <pardiff/models/flux_transformer.h>

#include <nlohmann/json.hpp>

#include "models/config_rules.h"

namespace pardiff {
FluxTransformerConfig FluxTransformerConfig::from_file(const ConfigFile& file) {
  file.expect_class({"FluxTransformer2DModel"});
  const FluxTransformerConfig defaults;
  FluxTransformerConfig config;
  config.patch_size = file.integer("patch_size", defaults.patch_size);
  config.in_channels = file.integer("in_channels", defaults.in_channels);
  config.out_channels = file.optional_integer("out_channels");
  config.num_layers = file.integer("num_layers", defaults.num_layers);
  config.num_single_layers = file.integer("num_single_layers", defaults.num_single_layers);
  config.attention_head_dim = file.integer("attention_head_dim", defaults.attention_head_dim);
  config.num_attention_heads = file.integer("num_attention_heads", defaults.num_attention_heads);
  config.joint_attention_dim = file.integer("joint_attention_dim", defaults.joint_attention_dim);
  config.pooled_projection_dim = file.integer("pooled_projection_dim", defaults.pooled_projection_dim);
  config.guidance_embeds = file.boolean("guidance_embeds", defaults.guidance_embeds);
  config.axes_dims_rope = file.integers("axes_dims_rope", defaults.axes_dims_rope);
  return validated(config, file);
}

void FluxTransformerConfig::validate() const {
  require_between("patch_size", patch_size, kMaxWidth);
  require_between("in_channels", in_channels, kMaxWidth);
  if (out_channels) require_between("out_channels", *out_channels, kMaxWidth);
  for (const auto& [key, count] : {std::pair{"num_layers", num_layers}, {"num_single_layers", num_single_layers}}) {
    check<ConfigError>(count >= 0 && count <= kMaxLayers, key, " is ", count, ". Give a number from 0 to ", kMaxLayers,
                       ".");
  }
  require_between("attention_head_dim", attention_head_dim, kMaxWidth);
  require_between("num_attention_heads", num_attention_heads, kMaxWidth);
  require_between("joint_attention_dim", joint_attention_dim, kMaxWidth);
  require_between("pooled_projection_dim", pooled_projection_dim, kMaxWidth);
  check<ConfigError>(inner_dim() <= kMaxWidth, "num_attention_heads ", num_attention_heads,
                     " times attention_head_dim ", attention_head_dim, " is ", inner_dim(), ". Keep it at most ",
                     kMaxWidth, ".");
  int64_t sum = 0;
  for (const int64_t dim : axes_dims_rope) {
    check<ConfigError>(dim >= 2 && dim % 2 == 0 && dim <= kMaxWidth, "axes_dims_rope holds ", dim,
                       ". Give even numbers above 0.");
    sum += dim;
  }
  check<ConfigError>(sum == attention_head_dim, "axes_dims_rope [", joined(axes_dims_rope), "] adds up to ", sum,
                     ", and attention_head_dim is ", attention_head_dim, ". Make them equal.");
}

std::string FluxTransformerConfig::to_json() const {
  nlohmann::json json = {{"_class_name", "FluxTransformer2DModel"},
                         {"attention_head_dim", attention_head_dim},
                         {"axes_dims_rope", axes_dims_rope},
                         {"guidance_embeds", guidance_embeds},
                         {"in_channels", in_channels},
                         {"joint_attention_dim", joint_attention_dim},
                         {"num_attention_heads", num_attention_heads},
                         {"num_layers", num_layers},
                         {"num_single_layers", num_single_layers},
                         {"out_channels", nullptr},
                         {"patch_size", patch_size},
                         {"pooled_projection_dim", pooled_projection_dim}};
  if (out_channels) json["out_channels"] = *out_channels;
  return json.dump(2) + "\n";
}

}  // namespace pardiff
