#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/io/model_folder.h>
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/models/t5_encoder.h>
#include <pardiff/pipelines/auto_model.h>

#include <functional>
#include <map>

#include "pipelines/part_loading.h"

namespace pardiff {
namespace {

struct Loading {
  PartFiles files;
  World& world;
  const AutoModelOptions& options;
};

template <typename Implementation, typename Config>
std::shared_ptr<Model> load(const Loading& loading) {
  auto model = std::make_shared<Implementation>(Config::from_file(loading.files.config), kPlaceholders);
  if (!loading.options.attention_backend.empty()) model->set_attention_backend(loading.options.attention_backend);
  fill_part(*model, loading.files.checkpoint, model->load_options(loading.options.dtype), loading.world,
            loading.options.parallel_config.config());
  return model;
}

struct Row {
  std::string stem;
  std::function<std::shared_ptr<Model>(const Loading&)> load;
};

const std::map<std::string, Row>& rows() {
  static const std::map<std::string, Row> table = {
      {"AutoencoderKL", {"diffusion_pytorch_model", load<AutoencoderKLImpl, AutoencoderKLConfig>}},
      {"CLIPTextModel", {"model", load<ClipTextModelImpl, ClipTextConfig>}},
      {"FluxTransformer2DModel", {"diffusion_pytorch_model", load<FluxTransformer2DModelImpl, FluxTransformerConfig>}},
      {"T5EncoderModel", {"model", load<T5EncoderModelImpl, T5Config>}},
  };
  return table;
}

}  // namespace

std::vector<std::string> AutoModel::class_names() {
  std::vector<std::string> names;
  for (const auto& [name, row] : rows()) names.push_back(name);
  return names;
}

std::shared_ptr<Model> AutoModel::from_pretrained(const std::string& model, World& world,
                                                  const AutoModelOptions& options) {
  const at::NoGradGuard no_grad;
  auto folder = resolve_model(model, options.revision);
  if (!options.subfolder.empty()) folder /= options.subfolder;
  const auto config = ConfigFile::open(folder / "config.json");
  const auto found = rows().find(config.class_name());
  check<ConfigError>(found != rows().end(), config.origin(), " is of a model '", config.class_name(),
                     "'. Here are: ", joined(class_names()), ".");
  return found->second.load({open_part(folder, found->second.stem, options.variant), world, options});
}

}  // namespace pardiff
