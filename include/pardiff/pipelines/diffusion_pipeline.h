#pragma once
#include <pardiff/pipelines/flux_pipeline.h>

#include <string>
#include <vector>

namespace pardiff {

/// Loads whatever pipeline a folder holds, as its model_index.json says.
class DiffusionPipeline {
 public:
  /// As FluxPipeline::from_pretrained, which is the only pipeline here.
  /// Throws: ConfigError for another `_class_name`; the message lists those that are here.
  static FluxPipeline from_pretrained(const std::string& model, World& world, const FluxPipelineOptions& options = {});
  /// The class names that from_pretrained accepts.
  static std::vector<std::string> class_names();
};

}  // namespace pardiff
