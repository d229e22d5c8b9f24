#pragma once
#include <cstddef>
#include <filesystem>
#include <string>

namespace pardiff {

/// A file that appears under its name whole or not at all: the bytes go to a temporary file in the same folder, and
/// `commit` puts it in place of what was there. Destroyed without `commit`, it leaves nothing behind. A symbolic link
/// is written through; a device or pipe (/dev/null, /dev/stdout) is written directly. Throws (all members):
/// CheckpointError naming the path and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Brings the bytes to the disk and gives the file its name.
  void commit();

  /// Finds out, before long work starts, whether `path` can be written, and leaves nothing behind.
  static void check_writable(const std::filesystem::path& path);

 private:
  [[noreturn]] void fail_with_errno(const char* what) const;
  void open_temporary();

  std::filesystem::path path_;       // as given, for messages
  std::filesystem::path target_;     // with symbolic links followed
  std::filesystem::path temporary_;  // empty while the file has no name
  int descriptor_ = -1;
  bool direct_ = false;
};

/// Writes a text file, whole or not at all.
void write_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace pardiff
