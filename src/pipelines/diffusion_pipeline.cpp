#include <pardiff/core/check.h>
#include <pardiff/io/config_file.h>
#include <pardiff/io/model_folder.h>
#include <pardiff/pipelines/diffusion_pipeline.h>

#include <algorithm>

namespace pardiff {

std::vector<std::string> DiffusionPipeline::class_names() { return {"FluxPipeline"}; }

FluxPipeline DiffusionPipeline::from_pretrained(const std::string& model, World& world,
                                                const FluxPipelineOptions& options) {
  const auto folder = resolve_model(model, options.revision);
  const auto index = ConfigFile::open(folder / "model_index.json");
  const auto names = class_names();
  check<ConfigError>(std::find(names.begin(), names.end(), index.class_name()) != names.end(), index.origin(),
                     " is of a pipeline '", index.class_name(), "'. Here are: ", joined(names), ".");
  return FluxPipeline::from_pretrained(model, world, options);
}

}  // namespace pardiff
