#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/descriptor.h"
#include "io/mapped_reading.h"

namespace pardiff {

/// A file mapped into memory for reading. Writes to the pages stay in this process. Pages are read under a
/// MappedReading.
class MappedFile {
 public:
  /// Throws: CheckpointError if there is no such regular file or it cannot be mapped.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  /// Equal in all processes of one host that map the same content of the same file: device, inode, size and time of the
  /// last write. A file that has taken this one's name since does not count. Throws: CheckpointError.
  std::string identity() const;
  /// Lets go of the memory of a stretch's whole pages. They come back from the file when they are read; what was
  /// written to them is lost.
  void forget(const std::byte* begin, int64_t size) const;
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), static_cast<std::size_t>(size_)}; }

 private:
  MappedFile(Descriptor file, std::byte* data, int64_t size, const std::string& path);

  std::string path_;
  Descriptor file_;
  std::byte* data_;
  int64_t size_;
  std::optional<WatchedMapping> watched_;
};

/// Reads a whole file of at most `max_bytes`.
/// Throws: CheckpointError if it is missing, larger, or a git-lfs pointer.
std::string read_whole_file(const std::filesystem::path& path, int64_t max_bytes);

/// Throws CheckpointError if `text` is what git leaves in place of a large file it has not fetched.
void refuse_git_lfs_pointer(std::string_view text, const std::filesystem::path& path);

/// A name out of a file, in quotes, for a message: control characters escaped, at most 120 bytes of it.
std::string in_quotes(std::string_view name);

}  // namespace pardiff
