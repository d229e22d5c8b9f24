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

/// Parameters have a shape and no memory until the files fill them.
inline constexpr nn::ParameterOptions kPlaceholders{.allocate = false};

/// One part of a model folder, opened and checked but not yet read.
struct PartFiles {
  ConfigFile config;
  Checkpoint checkpoint;
};

/// Opens config.json and the weights of a part. `stem` is "diffusion_pytorch_model" or "model".
/// Throws: CheckpointError if a file is missing or damaged.
PartFiles open_part(const std::filesystem::path& folder, const std::string& stem, const std::string& variant);

/// The same of a pipeline's part, which need not have the variant: its plain files are opened then.
PartFiles open_pipeline_part(const std::filesystem::path& folder, const std::string& stem, const std::string& variant);

/// Makes a model that has no memory parallel, and has it read its weights when it needs them; with tensor parallelism
/// each rank takes its slices only. Collective: with `parallel`.
void defer_part(Model& model, const Checkpoint& checkpoint, LoadOptions options, World& world,
                const std::optional<ParallelConfig>& parallel);
/// The same, and reads them.
void fill_part(Model& model, const Checkpoint& checkpoint, LoadOptions options, World& world,
               const std::optional<ParallelConfig>& parallel);

/// The bytes of a model's parameters, or of this rank's part of them; those that lie in the checkpoint's mapping are
/// not private.
ParameterBytes parameter_bytes(const Model& model, const Checkpoint* checkpoint);

/// A model that was made from its config and has no weights yet, or one that the caller brought along.
template <typename Holder>
struct OpenedPart {
  Holder model{nullptr};
  std::optional<Checkpoint> checkpoint{};  // none: the caller's

  /// Finds out whether the files hold what the model needs; no data is read. Throws: CheckpointError.
  void check_files() const {
    if (checkpoint) check_parameters(*model, parameter_source(*checkpoint), model->load_options());
  }
  /// Weights are read when they are needed.
  void defer(std::optional<at::ScalarType> dtype, World& world, const std::optional<ParallelConfig>& parallel = {}) {
    if (checkpoint) {
      defer_part(*model, *checkpoint, model->load_options(dtype), world, parallel);
    } else if (parallel) {
      model->enable_parallelism(*parallel, world);
    }
  }
  void fill(std::optional<at::ScalarType> dtype, World& world, const std::optional<ParallelConfig>& parallel = {}) {
    defer(dtype, world, parallel);
    model->need_weights();
  }
  ParameterBytes bytes() const { return parameter_bytes(*model, checkpoint ? &*checkpoint : nullptr); }
};

}  // namespace pardiff
