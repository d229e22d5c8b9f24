#pragma once
#include <pardiff/pipelines/flux_pipeline.h>

#include <filesystem>

namespace pardiff::flux {

/// What a pipeline consists of, to be saved.
struct SavedPipeline {
  std::filesystem::path source;            // the folder it was loaded from
  const FluxPipelineOptions& loaded_with;  // parts that are not from there, and how the others were read
  FluxTransformer2DModel transformer;
  AutoencoderKL vae;  // its decoder, unless it was brought along
  const FlowMatchEulerDiscreteScheduler& scheduler;
};

/// FluxPipeline::save_pretrained.
void save_pipeline(const SavedPipeline& pipeline, const std::filesystem::path& folder, World& world,
                   const SaveOptions& options);

}  // namespace pardiff::flux
