#include <fcntl.h>
#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace pardiff {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kMode = 0666;  // less the umask, as any new file

// /dev/stdout may lead to a regular file that the shell has open: renaming over it would lose what is written there.
// /dev/shm is a folder like any other.
bool is_written_directly(const fs::path& path) {
  const std::string text = path.string();
  const bool is_device = text.starts_with("/dev/") && !text.starts_with("/dev/shm/");
  if (is_device || text.starts_with("/proc/")) return true;
  std::error_code ignored;
  return fs::is_other(fs::status(path, ignored));
}

fs::path with_links_followed(fs::path path) {
  std::error_code ignored;
  for (int hops = 0; hops < 40 && fs::is_symlink(path, ignored); ++hops) {
    const fs::path next = fs::read_symlink(path, ignored);
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  return path;
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

[[noreturn]] void fail_with_errno(const char* what, const fs::path& path, const fs::path& target) {
  const int error = errno;
  std::error_code ignored;
  const fs::path folder = folder_of(target);
  if (error == ENOENT && !fs::exists(folder, ignored)) {
    fail<CheckpointError>(what, " ", path.string(), ": the folder ", folder.string(),
                          " does not exist. Create it first.");
  }
  const bool is_full = error == ENOSPC || error == EDQUOT;
  fail<CheckpointError>(what, " ", path.string(), ": ", std::strerror(error),
                        is_full ? ". Make room, or give another path." : ". Give another path.");
}

fs::path temporary_name(const fs::path& target) {
  static std::atomic<int> count{0};
  // Not the target's name: with more behind it, it could be too long.
  return folder_of(target) / text_of(".pardiff.", ::getpid(), ".", count++, ".tmp");
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : path_(path), target_(with_links_followed(path)) {
  std::error_code ignored;
  check<CheckpointError>(path_.has_filename() && !fs::is_directory(target_, ignored), "cannot write ", path_.string(),
                         ": it is a folder. Give the path of a file.");
  if (fs::is_symlink(target_, ignored)) {
    errno = ELOOP;
    fail_with_errno("cannot write");
  }
  direct_ = is_written_directly(path_);
  if (direct_) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  } else {
    open_temporary();
  }
  if (descriptor_ < 0) fail_with_errno("cannot write");
}

// A file without a name vanishes by itself even if this process is killed; not every file system has them.
void AtomicFile::open_temporary() {
  descriptor_ = ::open(folder_of(target_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, kMode);
  if (descriptor_ >= 0) return;
  temporary_ = temporary_name(target_);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (descriptor_ < 0) temporary_.clear();
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(other.direct_) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::write(descriptor_, from, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with_errno("cannot write");
    from += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void AtomicFile::commit() {
  if (!direct_) {
    if (::fsync(descriptor_) != 0) fail_with_errno("cannot bring to the disk");
    if (temporary_.empty()) {
      // Linking cannot replace a file, renaming can: the file gets a temporary name first.
      const fs::path name = temporary_name(target_);
      const std::string open_file = text_of("/proc/self/fd/", descriptor_);
      if (::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
        fail_with_errno("cannot name");
      }
      temporary_ = name;
    }
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_with_errno("cannot write");
    temporary_.clear();
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_with_errno("cannot write");
  // The name itself must survive a power failure too; file systems that cannot promise it say so here, harmlessly.
  const int folder = direct_ ? -1 : ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

void AtomicFile::check_writable(const fs::path& path) {
  // Opening a pipe waits for its reader, and closing it would tell the reader that all is written.
  if (is_written_directly(path)) {
    if (::access(path.c_str(), W_OK) != 0) pardiff::fail_with_errno("cannot write", path, path);
    return;
  }
  const AtomicFile attempt(path);
  // A file without a name does not show that its name will do.
  struct stat status = {};
  if (::lstat(attempt.target_.c_str(), &status) != 0 && errno != ENOENT) attempt.fail_with_errno("cannot write");
}

void AtomicFile::fail_with_errno(const char* what) const { pardiff::fail_with_errno(what, path_, target_); }

void write_text_file(const fs::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace pardiff
