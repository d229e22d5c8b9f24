#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pardiff {

/// A JSON configuration (config.json, scheduler_config.json, model_index.json), read by key with the type the reader
/// expects. A key whose value is null counts as absent. Every reader throws CheckpointError naming file, key, value and
/// what was expected if the value is something else.
class ConfigFile {
 public:
  /// Throws: CheckpointError if the file is missing, a git-lfs pointer, not JSON, nested absurdly deep, not an object,
  /// or names a key twice.
  static ConfigFile open(const std::filesystem::path& path);
  /// The same from text; `origin` stands for the file in messages.
  static ConfigFile parse(const std::string& text, const std::string& origin);

  /// The file's path, or what `parse` was given.
  const std::string& origin() const;
  /// Sorted, without those whose value is null.
  std::vector<std::string> keys() const;
  bool has(const std::string& key) const;

  int64_t integer(const std::string& key, int64_t default_value) const;
  /// An integer in 1..max (the default is taken as it is).
  int64_t positive_integer(const std::string& key, int64_t default_value, int64_t max) const;
  std::optional<int64_t> optional_integer(const std::string& key) const;
  std::vector<int64_t> integers(const std::string& key, const std::vector<int64_t>& default_value) const;
  /// Finite; integers count.
  double number(const std::string& key, double default_value) const;
  bool boolean(const std::string& key, bool default_value) const;
  std::string string(const std::string& key, const std::string& default_value) const;
  std::vector<std::string> strings(const std::string& key, const std::vector<std::string>& default_value) const;

  /// `_class_name` (diffusers), else the first of `architectures` (transformers), else "".
  std::string class_name() const;
  /// Throws: CheckpointError if `class_name` is none of these; a file that names no class may be any.
  void expect_class(const std::vector<std::string>& names) const;
  /// Library and class of an entry of model_index.json; nothing if absent or [null, null].
  std::optional<std::pair<std::string, std::string>> component(const std::string& key) const;

  /// Throws CheckpointError "<origin>: <key> is <value>, <expected>." for a rule that the reader of this config adds.
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace pardiff
