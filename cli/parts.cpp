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
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
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

TensorFindings compare(const BlankModel& blank, const Checkpoint& checkpoint) {
  TensorFindings findings;
  for (const auto& parameter : blank.model->named_parameters()) {
    std::vector<std::string> names = {parameter.key()};
    if (blank.load_options.other_names) {
      const auto others = blank.load_options.other_names(parameter.key());
      names.insert(names.end(), others.begin(), others.end());
    }
    const auto found =
        std::find_if(names.begin(), names.end(), [&](const auto& name) { return checkpoint.contains(name); });
    if (found == names.end()) {
      findings.wrong.push_back(text_of("missing: ", parameter.key()));
      continue;
    }
    const at::IntArrayRef shape = checkpoint.info(*found).shape;
    if (shape != parameter.value().sizes()) {
      findings.wrong.push_back(text_of("misshapen: ", *found, " is ", shape, ", needed ", parameter.value().sizes()));
    }
  }
  auto unused = unused_tensors(*blank.model, parameter_source(checkpoint), blank.load_options);
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
