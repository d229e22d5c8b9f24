#include "cli/parts.h"

#include <pardiff/core/check.h>
#include <pardiff/io/checkpoint_digest.h>
#include <pardiff/io/variant.h>
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/models/t5_encoder.h>
#include <pardiff/models/unused_tensors.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;

BlankModel blank_transformer(const ConfigFile& file, const nn::ParameterOptions& parameters) {
  return {FluxTransformer2DModel(FluxTransformerConfig::from_file(file), parameters).ptr(), {}};
}

template <typename Holder, typename Config>
BlankModel blank_part(const ConfigFile& file, const nn::ParameterOptions& parameters) {
  Holder model(Config::from_file(file), parameters);
  return {model.ptr(), model->load_options()};
}

// The one place that knows which classes are here.
struct ModelClass {
  const char* name;
  BlankModel (*make)(const ConfigFile& file, const nn::ParameterOptions& parameters);
};

constexpr ModelClass kModelClasses[] = {
    {"FluxTransformer2DModel", blank_transformer},
    {"CLIPTextModel", blank_part<ClipTextModel, ClipTextConfig>},
    {"T5EncoderModel", blank_part<T5EncoderModel, T5Config>},
    {"AutoencoderKL", blank_part<AutoencoderKL, AutoencoderKLConfig>},
};

std::string scaled(double value, const std::vector<std::string>& units) {
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  std::ostringstream text;
  text << std::fixed << std::setprecision(unit == 0 ? 0 : 1) << value << units[unit];
  return text.str();
}

}  // namespace

std::optional<Part::Weights> Part::weights(const std::string& variant) const {
  std::vector<std::string> variants = {variant};
  if (!variant.empty() && !name.empty()) variants.emplace_back();
  for (const auto& one : variants) {
    for (const char* stem : {"diffusion_pytorch_model", "model"}) {
      if (has_weights(folder, stem, one)) return Weights{stem, one};
    }
  }
  return std::nullopt;
}

void check_variant(const std::vector<Part>& parts, const std::string& variant) {
  const bool any = std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
    const auto weights = part.weights(variant);
    return weights && weights->variant == variant;
  });
  check<CheckpointError>(any || variant.empty(), "no part has files of variant '", variant,
                         "'. Leave --variant off, or give one that is there.");
}

std::vector<Part> parts_of(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "model_index.json", ignored)) {
    check<CheckpointError>(fs::exists(folder / "config.json", ignored), folder.string(),
                           " is no checkpoint: it has neither model_index.json nor config.json. Give a folder in the "
                           "diffusers layout.");
    return {{"", ConfigFile::open(folder / "config.json").class_name(), folder}};
  }
  const auto index = ConfigFile::open(folder / "model_index.json");
  std::vector<Part> parts;
  for (const auto& key : index.keys()) {
    if (key.starts_with("_")) continue;
    const auto component = index.component(key);
    if (component) parts.push_back({key, component->second, folder / key});
  }
  return parts;
}

BlankModel blank_model(const std::string& class_name, const ConfigFile& config, at::ScalarType dtype) {
  for (const auto& row : kModelClasses) {
    if (class_name == row.name) return row.make(config, {.dtype = dtype, .allocate = false});
  }
  return {};
}

namespace {

// One more than the largest N of the names "<prefix>N.".
int64_t blocks_of(const ParameterSource& source, const std::string& prefix) {
  int64_t count = 0;
  for (const auto& name : source.names) {
    if (!name.starts_with(prefix)) continue;
    int64_t number = -1;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
    count = std::max(count, number + 1);
  }
  return count;
}

std::optional<FluxTransformerConfig> config_of(const ParameterSource& source) {
  const std::set<std::string> names(source.names.begin(), source.names.end());
  const auto size = [&](const char* name, size_t dim) {
    const auto shape = names.contains(name) ? source.shape(name) : std::vector<int64_t>();
    return dim < shape.size() ? shape[dim] : 0;
  };
  FluxTransformerConfig config;
  config.attention_head_dim = size("transformer_blocks.0.attn.norm_q.weight", 0);
  const int64_t width = size("x_embedder.weight", 0);
  if (config.attention_head_dim < 8 || width < config.attention_head_dim) return std::nullopt;
  config.num_attention_heads = width / config.attention_head_dim;
  config.in_channels = size("x_embedder.weight", 1);
  config.out_channels = size("proj_out.weight", 0);
  config.num_layers = blocks_of(source, "transformer_blocks.");
  config.num_single_layers = blocks_of(source, "single_transformer_blocks.");
  config.joint_attention_dim = size("context_embedder.weight", 1);
  config.pooled_projection_dim = size("time_text_embed.text_embedder.linear_1.weight", 1);
  config.guidance_embeds = names.contains("time_text_embed.guidance_embedder.linear_1.weight");
  // Rotary angles are no tensors; any that fill a head will do.
  config.axes_dims_rope = {config.attention_head_dim - 4, 2, 2};
  return config;
}

}  // namespace

BlankModel blank_transformer_of(const Checkpoint& file) {
  const auto config = config_of(parameter_source(file));
  if (!config) return {};
  try {
    return blank_transformer(ConfigFile::parse(config->to_json(), file.path().string()), {.allocate = false});
  } catch (const Error& error) {
    fail<CheckpointError>(file.path().string(), " does not have the sizes of a FLUX transformer: ", error.what());
  }
}

bool is_original_layout(const Checkpoint& file) {
  const auto names = parameter_source(file).names;
  return std::any_of(names.begin(), names.end(), [&](const auto& name) { return !file.contains(name); });
}

TensorFindings compare(const BlankModel& blank, const Checkpoint& checkpoint) {
  TensorFindings findings;
  const auto source = parameter_source(checkpoint);
  const std::set<std::string> available(source.names.begin(), source.names.end());
  for (const auto& parameter : blank.model->named_parameters()) {
    std::vector<std::string> names = {parameter.key()};
    if (blank.load_options.other_names) {
      const auto others = blank.load_options.other_names(parameter.key());
      names.insert(names.end(), others.begin(), others.end());
    }
    const auto found =
        std::find_if(names.begin(), names.end(), [&](const auto& name) { return available.contains(name); });
    if (found == names.end()) {
      findings.wrong.push_back(text_of("missing: ", parameter.key()));
      continue;
    }
    const auto shape = source.shape(*found);
    if (at::IntArrayRef(shape) != parameter.value().sizes()) {
      findings.wrong.push_back(
          text_of("misshapen: ", *found, " is ", at::IntArrayRef(shape), ", needed ", parameter.value().sizes()));
    }
  }
  auto unused = unused_tensors(*blank.model, source, blank.load_options);
  for (const auto& name : unused.refused) {
    findings.wrong.push_back(text_of("stray: ", name, " has no place in ", blank.model->class_name()));
  }
  findings.unused = std::move(unused.let_be);
  return findings;
}

namespace {

// The config without what does not bear on a picture.
std::string meaning_of(const fs::path& config) {
  std::ifstream file(config);
  auto json = nlohmann::json::parse(file, nullptr, false);
  check<CheckpointError>(json.is_object(), "cannot read ", config.string(), ": it is not a JSON object.");
  for (const char* key : {"dtype", "torch_dtype", "transformers_version", "architectures"}) json.erase(key);
  std::erase_if(json.get_ref<nlohmann::json::object_t&>(),
                [](const auto& entry) { return entry.first.starts_with("_"); });
  return json.dump();
}

std::string files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (fs::is_regular_file(entry, ignored)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::string all;
  for (const auto& file : files) all += text_of(file.filename().string(), " ", digest_of_file(file), "\n");
  return all;
}

}  // namespace

std::string digest_of_part(const Part& part, const std::string& variant) {
  const auto weights = part.weights(variant);
  const auto content = weights ? text_of(meaning_of(part.folder / "config.json"),
                                         digest_of(Checkpoint::open(part.folder, weights->stem, weights->variant)))
                               : files_of(part.folder);
  return digest_of_text(content).substr(0, 16);
}

std::string count_text(int64_t count) {
  return scaled(static_cast<double>(count), {"", " thousand", " million", " billion"});
}

std::string bytes_text(int64_t bytes) { return scaled(static_cast<double>(bytes), {" B", " kB", " MB", " GB", " TB"}); }

}  // namespace pardiff::cli
