#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace pardiff {

/// While one lives, pages of a mapped file that can no longer be read (the file has become shorter, or the disk fails)
/// read as zeros, so that whoever computes with them reaches his own `finish`. Without one, such an access ends the
/// process with exit code 1 and a message that names the file: never a silent zero, never a bare bus error.
/// Counted for the whole process: the threads of a kernel do not know which call they work for.
class MappedReading {
 public:
  MappedReading();
  ~MappedReading();
  MappedReading(const MappedReading&) = delete;
  MappedReading& operator=(const MappedReading&) = delete;

  /// To be called before results are used.
  /// Cost: one fstat for every mapped file.
  /// Throws: CheckpointError naming a file that is mapped and has become shorter, was written to, or failed to be read.
  void finish() const;
};

/// `work()`, read under a MappedReading.
template <typename Work>
auto with_whole_files(const Work& work) {
  const MappedReading reading;
  auto result = work();
  reading.finish();
  return result;
}

/// A mapping that the handler of bus errors knows and `MappedReading::finish` looks after. The descriptor is the mapped
/// file's own, so that a file that was replaced by name stays what it was; it must outlive this object.
class WatchedMapping {
 public:
  WatchedMapping(std::byte* data, int64_t size, int descriptor, const std::string& path);
  ~WatchedMapping();
  WatchedMapping(const WatchedMapping&) = delete;
  WatchedMapping& operator=(const WatchedMapping&) = delete;

  struct Slot;

 private:
  Slot* slot_;
};

}  // namespace pardiff
