#pragma once
#include <pardiff/io/checkpoint.h>
#include <pardiff/io/config_file.h>
#include <pardiff/models/load.h>
#include <pardiff/models/model.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pardiff::cli {

/// A folder inside a checkpoint, or a checkpoint of one part.
struct Part {
  std::string name;        // "transformer"; empty for a checkpoint of one part
  std::string class_name;  // as model_index.json or config.json has it
  std::filesystem::path folder;

  struct Weights {
    std::string stem, variant;  // as Checkpoint::open takes them
  };
  /// The files of `variant` that are in the folder, else the plain ones (of a pipeline's part; a checkpoint of one part
  /// has the variant or none). None: no value.
  std::optional<Weights> weights(const std::string& variant) const;
};

/// The parts that a folder in the diffusers layout lists in model_index.json, or the one whose config.json lies in it.
/// Throws: CheckpointError for a folder that is neither.
std::vector<Part> parts_of(const std::filesystem::path& folder);

/// Throws: CheckpointError if a variant is asked for and no part has files of it.
void check_variant(const std::vector<Part>& parts, const std::string& variant);

/// A model whose parameters have names, shapes and a dtype, and no memory, with what loading it takes.
struct BlankModel {
  std::shared_ptr<Model> model;
  LoadOptions load_options;
};

/// Throws: CheckpointError for a config that is damaged. A class that is not here gives no model.
BlankModel blank_model(const std::string& class_name, const ConfigFile& config, at::ScalarType dtype = at::kFloat);

/// FLUX's transformer of the sizes that the tensors of a single file show, whatever its layout; no model if they show
/// none. Throws: CheckpointError for tensors that are damaged.
BlankModel blank_transformer_of(const Checkpoint& file);
/// Whether a file has the names of FLUX's first publication.
bool is_original_layout(const Checkpoint& file);

/// What is wrong with the tensors of a checkpoint, so that loading refuses it, a line each: missing, misshapen, of a
/// part that the model has and yet without a place in it; and those that loading lets be.
struct TensorFindings {
  std::vector<std::string> wrong;
  std::vector<std::string> unused;
};
TensorFindings compare(const BlankModel& blank, const Checkpoint& checkpoint);

/// 16 hex digits that tell a part's content from another's: of its weights and what its config means, or of all files
/// of a part without weights.
/// Throws: CheckpointError for a file that is missing or damaged.
std::string digest_of_part(const Part& part, const std::string& variant);

/// "11.9 billion", "24.2 GB"
std::string count_text(int64_t count);
std::string bytes_text(int64_t bytes);

}  // namespace pardiff::cli
