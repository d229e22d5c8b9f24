#include "comm/backends/shm_segment.h"

#include <linux/futex.h>
#include <pardiff/core/check.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <fstream>

#include "comm/memory_file.h"

namespace pardiff::comm {
namespace {

size_t bytes_of_segment(int ranks) {
  return sizeof(Doorbell) * static_cast<size_t>(ranks) + sizeof(ByteRing) * static_cast<size_t>(ranks * ranks);
}

uint32_t* word_of(std::atomic<uint32_t>& value) { return reinterpret_cast<uint32_t*>(&value); }

}  // namespace

void Doorbell::ring() {
  rings.fetch_add(1);
  if (is_asleep.load() != 0) syscall(SYS_futex, word_of(rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Doorbell::sleep(uint32_t seen, int64_t microseconds) {
  const timespec limit = {.tv_sec = microseconds / 1'000'000, .tv_nsec = microseconds % 1'000'000 * 1000};
  syscall(SYS_futex, word_of(rings), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void ByteRing::write(const void* bytes, size_t count) {
  const uint64_t position = written_.load(std::memory_order_relaxed);
  const size_t start = position % kCapacity, first = std::min(count, kCapacity - start);
  std::memcpy(bytes_ + start, bytes, first);
  std::memcpy(bytes_, static_cast<const std::byte*>(bytes) + first, count - first);
  written_.store(position + count, std::memory_order_release);
}

void ByteRing::read(void* bytes, size_t count) {
  const uint64_t position = read_.load(std::memory_order_relaxed);
  const size_t start = position % kCapacity, first = std::min(count, kCapacity - start);
  std::memcpy(bytes, bytes_ + start, first);
  std::memcpy(static_cast<std::byte*>(bytes) + first, bytes_, count - first);
  read_.store(position + count, std::memory_order_release);
}

std::unique_ptr<SharedMemory> SharedMemory::create(size_t size) {
  return std::unique_ptr<SharedMemory>(new SharedMemory(make_memory_file("pardiff", size), size));
}

std::unique_ptr<SharedMemory> SharedMemory::open(int pid, int descriptor, size_t size) {
  return std::unique_ptr<SharedMemory>(new SharedMemory(open_memory_file(pid, descriptor, size), size));
}

SharedMemory::SharedMemory(Descriptor file, size_t size) : file_(std::move(file)), size_(size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  check<CommError>(memory != MAP_FAILED, "cannot map ", size, " bytes of shared memory: ", std::strerror(errno));
  bytes_ = static_cast<std::byte*>(memory);
}

SharedMemory::~SharedMemory() { munmap(bytes_, size_); }

std::unique_ptr<ShmSegment> ShmSegment::create(int ranks) {
  try {
    return std::unique_ptr<ShmSegment>(new ShmSegment(SharedMemory::create(bytes_of_segment(ranks)), ranks));
  } catch (const CommError& refusal) {
    fail<CommError>(refusal.what(), ". Use --comm gloo.");
  }
}

std::unique_ptr<ShmSegment> ShmSegment::open(int pid, int descriptor, int ranks) {
  return std::unique_ptr<ShmSegment>(
      new ShmSegment(SharedMemory::open(pid, descriptor, bytes_of_segment(ranks)), ranks));
}

// A new file reads as zeros, which is how every member of these types starts.
Doorbell& ShmSegment::doorbell(int rank) const { return reinterpret_cast<Doorbell*>(memory_->bytes())[rank]; }

ByteRing& ShmSegment::ring(int from, int to) const {
  auto* rings = reinterpret_cast<ByteRing*>(memory_->bytes() + sizeof(Doorbell) * static_cast<size_t>(ranks_));
  return rings[from * ranks_ + to];
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space = {};
  const bool known = stat("/proc/self/ns/pid", &space) == 0;
  return text_of(boot, "/", known ? space.st_ino : 0, "/", geteuid());
}

}  // namespace pardiff::comm
