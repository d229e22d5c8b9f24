#pragma once
#include <c10/core/ScalarType.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/models/model.h>
#include <pardiff/pipelines/parallel_choice.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pardiff {

struct AutoModelOptions {
  /// The part's folder within the model's; empty: the model's folder itself.
  std::string subfolder{};
  /// Unset: the dtype of the file.
  std::optional<at::ScalarType> dtype{};
  /// "fp16" reads `<file>.fp16.safetensors`.
  std::string variant{};
  /// Of a repository id: a branch, a tag or a commit.
  std::string revision = "main";
  /// Runs the model on several ranks, as Model::enable_parallelism does.
  ParallelChoice parallel_config{};
  /// Empty: the default.
  std::string attention_backend{};
};

/// Loads whatever model a folder holds, as its config.json says.
class AutoModel {
 public:
  /// Collective: if parallel_config is given.
  /// Throws: ConfigError for a class that is not here (the message lists those that are); CheckpointError for a file
  /// that is missing or damaged.
  static std::shared_ptr<Model> from_pretrained(const std::string& model, World& world,
                                                const AutoModelOptions& options = {});
  /// The same as a module holder: AutoModel::from_pretrained<FluxTransformer2DModel>(...).
  /// Throws: ConfigError if the folder holds another class.
  template <typename Holder>
  static Holder from_pretrained(const std::string& model, World& world, const AutoModelOptions& options = {}) {
    const auto loaded = from_pretrained(model, world, options);
    auto module = std::dynamic_pointer_cast<typename Holder::ContainedType>(loaded);
    check<ConfigError>(module != nullptr, model, " holds a ", loaded->class_name(),
                       ", not the class that was asked for. Ask for that, or give another folder or subfolder.");
    return Holder(std::move(module));
  }
  /// The class names that from_pretrained accepts.
  static std::vector<std::string> class_names();
};

}  // namespace pardiff
