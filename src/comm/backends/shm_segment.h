#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/descriptor.h"

namespace pardiff::comm {

/// What wakes one rank: `rings` changes whenever another rank has written to it or read from it.
struct Doorbell {
  alignas(64) std::atomic<uint32_t> rings;
  std::atomic<uint32_t> is_asleep;

  /// Announces a change, with a system call only if the rank sleeps.
  void ring();
  /// Sleeps until the bell has rung since it showed `seen`, or for `microseconds`.
  void sleep(uint32_t seen, int64_t microseconds);
};

/// A stream of bytes from one rank to another: a ring of fixed capacity, one writer, one reader, no lock. Positions
/// count bytes since the start and never wrap.
class ByteRing {
 public:
  static constexpr size_t kCapacity = size_t{8} << 20;  // most exchanges of a layer fit, so that starting one sends it

  size_t readable() const { return written_.load(std::memory_order_acquire) - read_.load(std::memory_order_relaxed); }
  size_t writable() const {
    return kCapacity - (written_.load(std::memory_order_relaxed) - read_.load(std::memory_order_acquire));
  }
  /// Both need that many bytes to be writable (readable).
  void write(const void* bytes, size_t count);
  void read(void* bytes, size_t count);

 private:
  alignas(64) std::atomic<uint64_t> written_;
  alignas(64) std::atomic<uint64_t> read_;
  alignas(64) std::byte bytes_[kCapacity];
};

/// A memory file that is mapped, and which others can open.
class SharedMemory {
 public:
  /// Throws: CommError with the system's reason.
  static std::unique_ptr<SharedMemory> create(size_t size);
  /// Opens what another process of this host has created. Throws: CommError with the system's reason.
  static std::unique_ptr<SharedMemory> open(int pid, int descriptor, size_t size);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// The file's descriptor in this process, for `open` of the others.
  int descriptor() const { return file_.get(); }
  std::byte* bytes() const { return bytes_; }

 private:
  SharedMemory(Descriptor file, size_t size);

  Descriptor file_;
  size_t size_;
  std::byte* bytes_ = nullptr;
};

/// The memory of one group's ranks.
class ShmSegment {
 public:
  /// Throws: CommError when there is no memory.
  static std::unique_ptr<ShmSegment> create(int ranks);
  /// Opens what another process of this host has created. Throws: CommError with the system's reason.
  static std::unique_ptr<ShmSegment> open(int pid, int descriptor, int ranks);

  /// For `open` of the others.
  int descriptor() const { return memory_->descriptor(); }
  Doorbell& doorbell(int rank) const;
  ByteRing& ring(int from, int to) const;

 private:
  ShmSegment(std::unique_ptr<SharedMemory> memory, int ranks) : memory_(std::move(memory)), ranks_(ranks) {}

  std::unique_ptr<SharedMemory> memory_;
  int ranks_;
};

/// Equal in two processes that can share memory: the same boot, process namespace and user.
std::string host_identity();

}  // namespace pardiff::comm
