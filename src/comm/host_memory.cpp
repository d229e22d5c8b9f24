#include "comm/host_memory.h"

#include <fcntl.h>
#include <pardiff/core/check.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>

#include "comm/backends/liveness.h"
#include "comm/backends/shm_segment.h"
#include "comm/memory_file.h"

namespace pardiff::comm {
namespace {

// What a block's word says: one of these alone, or kReady and the number of those who have the block.
constexpr uint32_t kEmpty = 0, kBeingFilled = 1, kBeingEmptied = 2, kReady = uint32_t{1} << 31;

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

size_t whole_pages(size_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

// The words' file, never empty.
size_t bytes_of_words(size_t blocks) { return std::max<size_t>(1, blocks) * sizeof(std::atomic<uint32_t>); }

void write_all(int file, const void* bytes, size_t count, size_t offset) {
  const auto* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const auto written = pwrite(file, from, count, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    check<CommError>(written > 0, "no shared memory for ", count,
                     " bytes of weights: ", written < 0 ? std::strerror(errno) : "nothing was written");
    from += written;
    offset += static_cast<size_t>(written);
    count -= static_cast<size_t>(written);
  }
}

}  // namespace

struct HostMemory::Files {
  std::unique_ptr<SharedMemory> words;
  Descriptor contents;
  std::vector<size_t> bytes, offsets;  // of each block; they start at whole pages
  size_t total = 0;

  explicit Files(const std::vector<size_t>& block_bytes) : bytes(block_bytes) {
    for (const size_t size : bytes) {
      offsets.push_back(total);
      total += whole_pages(size);
    }
  }

  std::atomic<uint32_t>& word(size_t block) const {
    return reinterpret_cast<std::atomic<uint32_t>*>(words->bytes())[block];
  }

  void let_go(size_t block) {
    auto& state = word(block);
    uint32_t seen = state.load();
    while (!state.compare_exchange_weak(seen, seen == (kReady | 1) ? kBeingEmptied : seen - 1)) {
    }
    if (seen != (kReady | 1)) return;
    fallocate(contents.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offsets[block]),
              static_cast<off_t>(whole_pages(bytes[block])));
    state.store(kEmpty);
  }
};

HostMemory::HostMemory(std::shared_ptr<Files> files, std::shared_ptr<Liveness> liveness)
    : files_(std::move(files)), liveness_(std::move(liveness)) {}

HostMemory::~HostMemory() = default;

std::shared_ptr<HostMemory> HostMemory::create(const std::vector<size_t>& block_bytes,
                                               std::shared_ptr<Liveness> liveness) {
  auto files = std::make_shared<Files>(block_bytes);
  files->words = SharedMemory::create(bytes_of_words(block_bytes.size()));
  files->contents = make_memory_file("pardiff-weights", files->total);
  return std::shared_ptr<HostMemory>(new HostMemory(std::move(files), std::move(liveness)));
}

std::shared_ptr<HostMemory> HostMemory::open(const std::string& address, const std::vector<size_t>& block_bytes,
                                             std::shared_ptr<Liveness> liveness) {
  int pid = 0, words = -1, contents = -1;
  std::istringstream(address) >> pid >> words >> contents;
  auto files = std::make_shared<Files>(block_bytes);
  files->words = SharedMemory::open(pid, words, bytes_of_words(block_bytes.size()));
  files->contents = open_memory_file(pid, contents, files->total);
  return std::shared_ptr<HostMemory>(new HostMemory(std::move(files), std::move(liveness)));
}

std::string HostMemory::address() const {
  return text_of(getpid(), " ", files_->words->descriptor(), " ", files_->contents.get());
}

HostMemory::Claimed HostMemory::claim(size_t block) {
  auto& state = files_->word(block);
  uint32_t seen = state.load();
  while (true) {
    if (seen == kBeingFilled || seen == kBeingEmptied) return {Claim::kTaken, nullptr};
    const bool is_ready = (seen & kReady) != 0;
    if (!state.compare_exchange_weak(seen, is_ready ? seen + 1 : kBeingFilled)) continue;
    if (!is_ready) return {Claim::kMine, nullptr};
    return {Claim::kReady, std::shared_ptr<Block>(new Block(files_, block))};
  }
}

std::shared_ptr<HostMemory::Block> HostMemory::fill(size_t block, const void* bytes) {
  write_all(files_->contents.get(), bytes, files_->bytes[block], files_->offsets[block]);
  files_->word(block).store(kReady | 1);
  return std::shared_ptr<Block>(new Block(files_, block));
}

void HostMemory::abandon(size_t block) { files_->word(block).store(kEmpty); }

void HostMemory::wait(size_t block) const {
  const Waiting waiting(liveness_.get(), "weights of this host", 0, "load", -1);
  const auto& state = files_->word(block);
  for (uint32_t seen = state.load(); seen == kBeingFilled || seen == kBeingEmptied; seen = state.load()) {
    if (liveness_) liveness_->check_alive();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

HostMemory::Block::Block(std::shared_ptr<Files> files, size_t index) : files_(std::move(files)), index_(index) {
  const size_t bytes = files_->bytes[index];
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, files_->contents.get(),
                      static_cast<off_t>(files_->offsets[index]));
  if (memory == MAP_FAILED) {
    const int error = errno;
    files_->let_go(index);
    fail<CommError>("cannot map ", bytes, " bytes of shared weights: ", std::strerror(error));
  }
  bytes_ = memory;
}

HostMemory::Block::~Block() {
  munmap(bytes_, files_->bytes[index_]);
  files_->let_go(index_);
}

}  // namespace pardiff::comm
