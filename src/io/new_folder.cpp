#include <fcntl.h>
#include <pardiff/core/check.h>
#include <pardiff/io/new_folder.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <random>
#include <string>
#include <string_view>

namespace pardiff {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".partial";

bool holds_files(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) && !(fs::is_directory(path, ignored) && fs::is_empty(path, ignored));
}

// "." + the target's name + "."; then a number and the suffix.
std::string prefix_of(const fs::path& target) { return text_of(".", target.filename().string(), "."); }

bool is_working_name(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) return false;
  if (name.size() <= prefix.size() + kSuffix.size()) return false;
  return std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix.size()),
                     name.end() - static_cast<std::ptrdiff_t>(kSuffix.size()),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

enum class Lock { kTaken, kHeld, kImpossible };

Lock try_lock(int folder) {
  if (::flock(folder, LOCK_EX | LOCK_NB) == 0) return Lock::kTaken;
  return errno == EWOULDBLOCK ? Lock::kHeld : Lock::kImpossible;
}

int open_folder(const fs::path& path) { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }

// Who fills a folder holds its lock, which ends with him however he ends.
void remove_left_behind(const fs::path& parent, const fs::path& target) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    if (!is_working_name(entry.path().filename().string(), prefix_of(target))) continue;
    const int folder = open_folder(entry.path());
    if (folder < 0) continue;
    if (try_lock(folder) == Lock::kTaken) fs::remove_all(entry.path(), ignored);
    ::close(folder);
  }
}

bool is_still_at(const fs::path& path, int folder) {
  struct stat held = {}, named = {};
  return ::fstat(folder, &held) == 0 && ::lstat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

struct Working {
  fs::path path;
  int lock;  // -1 where folders cannot be locked
};

// Before it was locked, another process may have taken the folder for one left behind: then once more.
Working create_locked(const fs::path& parent, const fs::path& target) {
  for (;;) {
    const auto path = parent / text_of(prefix_of(target), std::random_device()(), kSuffix);
    std::error_code error;
    const bool is_new = fs::create_directory(path, error);
    check<CheckpointError>(!error, "cannot write ", target.string(), ": ", error.message(), ".");
    if (!is_new) continue;
    const int folder = open_folder(path);
    const auto lock = folder < 0 ? Lock::kHeld : try_lock(folder);
    if (lock == Lock::kTaken && is_still_at(path, folder)) return {path, folder};
    if (folder >= 0) ::close(folder);
    if (lock == Lock::kImpossible) return {path, -1};
  }
}

}  // namespace

NewFolder::NewFolder(const fs::path& target) : target_(target) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // "folder/"
  check<CheckpointError>(!holds_files(target_), "cannot write ", target_.string(),
                         ": it exists and is not empty. Give another path, or remove it first.");
  const auto parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  std::error_code error;
  check<CheckpointError>(fs::is_directory(parent, error), "cannot write ", target_.string(), ": the folder ",
                         parent.string(), " does not exist. Create it first.");
  remove_left_behind(parent, target_);
  const auto working = create_locked(parent, target_);
  working_ = working.path;
  lock_ = working.lock;
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!working_.empty()) fs::remove_all(working_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

void NewFolder::check_room(int64_t bytes) const {
  std::error_code error;
  const auto space = fs::space(working_, error);
  check<CheckpointError>(error || static_cast<double>(space.available) >= static_cast<double>(bytes), "cannot write ",
                         target_.string(), ": it takes ", bytes, " bytes, and ", space.available,
                         " are free. Make room, or give another path.");
}

void NewFolder::commit() {
  std::error_code error;
  fs::rename(working_, target_, error);
  check<CheckpointError>(!error, "cannot write ", target_.string(), ": ", error.message(), ".");
  working_.clear();
}

}  // namespace pardiff
