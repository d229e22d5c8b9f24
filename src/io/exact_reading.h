#pragma once
#include <cstddef>
#include <cstdint>

namespace pardiff {

/// While one lives, just those pages of a stretch of a mapped file are read from the disk that are touched or copied.
/// Left alone, the kernel reads on around them (megabytes, on some disks): into the slices of other ranks.
class ExactReading {
 public:
  ExactReading(const std::byte* begin, const std::byte* end);
  ~ExactReading();
  ExactReading(const ExactReading&) = delete;
  ExactReading& operator=(const ExactReading&) = delete;

  /// Copies [begin, end) of the stretch to `to`, fetching in good time; returns where the copy ends. From the end of
  /// one copy to the begin of the next everything is fetched.
  std::byte* copy(const std::byte* begin, const std::byte* end, std::byte* to);

 private:
  void fetch_until(std::uintptr_t address);

  std::uintptr_t first_, end_;
  std::uintptr_t next_;  // not yet asked for
};

}  // namespace pardiff
