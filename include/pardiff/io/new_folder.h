#pragma once
#include <cstdint>
#include <filesystem>

namespace pardiff {

/// A folder that is filled beside its final place and appears there whole, or not at all. Destroyed without `commit`,
/// it leaves nothing behind; what a killed process has left of the same target is removed by the next one.
class NewFolder {
 public:
  /// Throws: CheckpointError if `target` exists and is not an empty folder, or cannot be created.
  explicit NewFolder(const std::filesystem::path& target);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  /// Where to write until `commit`.
  const std::filesystem::path& path() const { return working_; }
  /// Throws: CheckpointError unless the file system has room for `bytes`; the message tells how many are free.
  void check_room(int64_t bytes) const;
  /// Gives the folder its name. Throws: CheckpointError naming the target and the system's reason.
  void commit();

 private:
  std::filesystem::path target_, working_;
  int lock_ = -1;  // of the working folder, held until this process ends it or ends
};

}  // namespace pardiff
