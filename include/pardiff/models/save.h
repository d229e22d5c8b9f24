#pragma once
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace pardiff {

class Model;
class World;

struct SaveOptions {
  /// A file holds at most this, or one larger tensor.
  int64_t max_shard_bytes = 10'000'000'000;
  /// "fp16" writes `<file>.fp16.safetensors`.
  std::string variant = "";
  /// Unset: every parameter is written as it is.
  std::optional<at::ScalarType> dtype{};
};

/// Writes the parameters of `module` as save_checkpoint does; a parameter that tensor parallelism has cut is put
/// together first, so that the files do not show how many ranks there were.
/// Collective: every rank of `world`, with equal arguments. Rank 0 writes; the others return when it is done.
/// Cost: one all_gather for each cut parameter, memory of one whole parameter on every rank; and a broadcast of 8 bytes
/// for each parameter.
/// Throws: on every rank with one text: UsageError for a size that is not positive; CheckpointError if a file cannot be
/// written. What was there before is then still there.
void save_parameters(torch::nn::Module& module, const std::filesystem::path& folder, const std::string& stem,
                     World& world, const SaveOptions& options = {});

/// The same and config.json: a folder that AutoModel, diffusers or transformers load. The config comes last, so that a
/// new folder is no model until it is whole.
/// Collective, Cost, Throws: as save_parameters; and ConfigError for a model that holds only a part of what its config
/// says (the VAE's decoder alone).
void save_pretrained(Model& model, const std::filesystem::path& folder, World& world, const SaveOptions& options = {});

}  // namespace pardiff
