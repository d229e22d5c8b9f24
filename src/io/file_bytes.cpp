#include "io/file_bytes.h"

#include <fcntl.h>
#include <pardiff/core/check.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace pardiff {
namespace {

[[noreturn]] void fail_to_open(const std::filesystem::path& path, int error) {
  std::error_code ignored;
  if (error == ENOENT && std::filesystem::is_symlink(path, ignored)) {
    fail<CheckpointError>("cannot open ", path.string(), ": it is a symbolic link to ",
                          std::filesystem::read_symlink(path, ignored).string(),
                          ", which does not exist. Fetch the file again.");
  }
  fail<CheckpointError>("cannot open ", path.string(), ": ", std::strerror(error),
                        error == ENOENT ? ". Fetch or copy the file, or give another folder." : ".");
}

int64_t size_of_regular_file(int descriptor, const std::filesystem::path& path) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) fail_to_open(path, errno);
  check<CheckpointError>(S_ISREG(status.st_mode), "cannot read ", path.string(), ": it is ",
                         S_ISDIR(status.st_mode) ? "a folder" : "not a regular file", ". Give the path of a file.");
  return status.st_size;
}

// Opening a pipe must not wait for a writer, hence O_NONBLOCK; it means nothing to regular files.
Descriptor open_for_reading(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail_to_open(path, errno);
  return file;
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  auto file = open_for_reading(path);
  const int64_t size = size_of_regular_file(file.get(), path);
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile(std::move(file), nullptr, 0, path.string()));
  // Private and writable: a caller that updates a weight in place gets pages of its own instead of a SIGSEGV.
  void* const data = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  check<CheckpointError>(data != MAP_FAILED, "cannot map ", path.string(), " (", size,
                         " bytes) into memory: ", std::strerror(errno), ".");
  return std::shared_ptr<const MappedFile>(
      new MappedFile(std::move(file), static_cast<std::byte*>(data), size, path.string()));
}

MappedFile::MappedFile(Descriptor file, std::byte* data, int64_t size, const std::string& path)
    : path_(path), file_(std::move(file)), data_(data), size_(size) {
  if (data_ != nullptr) watched_.emplace(data_, size_, file_.get(), path_);
}

MappedFile::~MappedFile() {
  watched_.reset();
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
}

std::string MappedFile::identity() const {
  struct stat status = {};
  check<CheckpointError>(::fstat(file_.get(), &status) == 0, "cannot look at ", path_, ": ", std::strerror(errno),
                         ". Fetch the file again.");
  return text_of(status.st_dev, ":", status.st_ino, ":", status.st_size, ":", status.st_mtim.tv_sec, ".",
                 status.st_mtim.tv_nsec);
}

void MappedFile::forget(const std::byte* begin, int64_t size) const {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<std::uintptr_t>(begin) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(begin) + static_cast<std::uintptr_t>(size)) / page * page;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

std::string read_whole_file(const std::filesystem::path& path, int64_t max_bytes) {
  const auto file = open_for_reading(path);
  const int64_t size = size_of_regular_file(file.get(), path);
  check<CheckpointError>(size <= max_bytes, "cannot read ", path.string(), ": it has ", size, " bytes, at most ",
                         max_bytes, " make sense here. It is another file; fetch the right one.");
  std::string text(static_cast<std::size_t>(size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    check<CheckpointError>(count > 0, "cannot read ", path.string(), ": ",
                           count < 0 ? std::strerror(errno) : "it became shorter while being read", ".");
    done += static_cast<std::size_t>(count);
  }
  refuse_git_lfs_pointer(text, path);
  return text;
}

void refuse_git_lfs_pointer(std::string_view text, const std::filesystem::path& path) {
  check<CheckpointError>(!text.starts_with("version https://git-lfs.github.com/spec/"), "cannot read ", path.string(),
                         ": it is a git-lfs pointer, not the file itself. Run 'git lfs pull' in its repository.");
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t kLongest = 120;
  std::string text = "'";
  for (const char c : name.substr(0, kLongest)) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) {
      text += c;
    } else {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      text += escape;
    }
  }
  return text + (name.size() > kLongest ? "...'" : "'");
}

}  // namespace pardiff
