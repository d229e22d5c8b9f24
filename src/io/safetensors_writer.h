#pragma once
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/safetensors.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace pardiff {

/// One safetensors file in two steps, so that several files can be checked, then written, then put in place together.
class SafetensorsWriter {
 public:
  /// Throws: UsageError as write_safetensors does; nothing is written yet.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                    const std::map<std::string, std::string>& metadata);

  /// Writes all bytes; the file appears when the caller commits it.
  AtomicFile write() const;

 private:
  std::filesystem::path path_;
  std::vector<NamedTensor> tensors_;
  std::string header_;
};

}  // namespace pardiff
