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
  SafetensorsWriter(const std::filesystem::path& path, std::vector<DeferredTensor> tensors,
                    const std::map<std::string, std::string>& metadata);

  /// Writes all bytes; the file appears when the caller commits it.
  AtomicFile write() const;

 private:
  std::filesystem::path path_;
  std::vector<DeferredTensor> tensors_;
  std::string header_;
};

/// Tensors that are there already, as ones to be made. Throws: UsageError for one that the format cannot hold; `path`
/// is for the message.
std::vector<DeferredTensor> deferred(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path);

}  // namespace pardiff
