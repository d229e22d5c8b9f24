#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace pardiff::testing {

/// A folder of one test's own, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  /// Sorted names of what lies directly in it (or in a folder below).
  std::vector<std::string> names(const std::string& below = "") const;

 private:
  std::filesystem::path path_;
};

std::string content_of(const std::filesystem::path& path);
void put(const std::filesystem::path& path, const std::string& content);

}  // namespace pardiff::testing
