#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace pardiff {

/// How the files of one part of a model are called.
class CheckpointNames {
 public:
  /// Throws: UsageError if stem or variant cannot be part of a file name.
  CheckpointNames(const std::string& stem, const std::string& variant);

  std::string single() const;
  std::string index() const;
  /// `number` from 1.
  std::string shard(std::size_t number, std::size_t count) const;
  /// The names in `folder` that are shards of this stem and variant, sorted.
  std::vector<std::string> shards_in(const std::filesystem::path& folder) const;

 private:
  std::string base_;  // stem[.variant]
  std::string stem_;
  std::string variant_;
};

/// The names of all safetensors files in a folder, sorted; none if there is no such folder.
std::vector<std::string> safetensors_files_in(const std::filesystem::path& folder);

}  // namespace pardiff
