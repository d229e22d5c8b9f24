#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/io/config_file.h>
#include <pardiff/models/apply.h>
#include <pardiff/models/load.h>
#include <pardiff/models/model.h>
#include <pardiff/nn/parameter.h>
#include <pardiff/parallel/config.h>
#include <pardiff/pipelines/flux_output.h>

#include <filesystem>
#include <optional>
#include <string>

namespace pardiff {

/// One part of a model folder, opened and checked but not yet read.
struct PartFiles {
  ConfigFile config;
  Checkpoint checkpoint;
};

/// Opens config.json and the weights of a part. `stem` is "diffusion_pytorch_model" or "model".
/// Throws: CheckpointError if a file is missing or damaged.
PartFiles open_part(const std::filesystem::path& folder, const std::string& stem, const std::string& variant);

/// Fills a model that was made without memory; with tensor parallelism each rank takes its slices only.
void fill_part(Model& model, const Checkpoint& checkpoint, LoadOptions options, World& world,
               const std::optional<ParallelConfig>& parallel);

/// The bytes of a model's parameters; those that lie in the checkpoint's mapping are not private.
ParameterBytes parameter_bytes(const torch::nn::Module& model, const Checkpoint* checkpoint);

inline constexpr nn::ParameterOptions kPlaceholders{.allocate = false};

}  // namespace pardiff
