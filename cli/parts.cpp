#include "cli/parts.h"

#include <pardiff/core/check.h>
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/models/t5_encoder.h>

#include <algorithm>
#include <iomanip>
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

std::string Part::weights_stem(const std::string& variant) const {
  const std::string suffix = variant.empty() ? "" : "." + variant;
  // Also a link of the Hugging Face cache that leads nowhere: opening it says so.
  const auto is_there = [&](const std::string& file) {
    std::error_code ignored;
    return fs::exists(fs::symlink_status(folder / file, ignored));
  };
  for (const std::string stem : {"diffusion_pytorch_model", "model"}) {
    if (is_there(stem + suffix + ".safetensors") || is_there(stem + ".safetensors.index" + suffix + ".json")) {
      return stem;
    }
  }
  return "";
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

TensorFindings compare(const BlankModel& blank, const Checkpoint& checkpoint) {
  TensorFindings findings;
  std::set<std::string> used(blank.load_options.ignored.begin(), blank.load_options.ignored.end());
  for (const auto& parameter : blank.model->named_parameters()) {
    std::vector<std::string> names = {parameter.key()};
    if (blank.load_options.other_names) {
      const auto others = blank.load_options.other_names(parameter.key());
      names.insert(names.end(), others.begin(), others.end());
    }
    bool found = false;
    for (const auto& name : names) {
      if (!checkpoint.contains(name)) continue;
      used.insert(name);
      const at::IntArrayRef shape = checkpoint.info(name).shape;
      if (!found && shape != parameter.value().sizes()) {
        findings.wrong.push_back(text_of("misshapen: ", name, " is ", shape, ", needed ", parameter.value().sizes()));
      }
      found = true;
    }
    if (!found) findings.wrong.push_back("missing: " + parameter.key());
  }
  for (const auto& name : checkpoint.names()) {
    if (!used.contains(name)) findings.unused.push_back(name);
  }
  return findings;
}

std::string count_text(int64_t count) {
  return scaled(static_cast<double>(count), {"", " thousand", " million", " billion"});
}

std::string bytes_text(int64_t bytes) { return scaled(static_cast<double>(bytes), {" B", " kB", " MB", " GB", " TB"}); }

}  // namespace pardiff::cli
