#include "comm/backends/board.h"

#include <pardiff/core/check.h>
#include <unistd.h>

#include <cstring>
#include <sstream>
#include <utility>

namespace pardiff::comm {

static_assert(sizeof(Doing) % sizeof(uint64_t) == 0 && std::is_trivially_copyable_v<Doing>);

std::string Doing::words() const {
  if (operation[0] == 0) return "before its first operation";
  std::ostringstream text;
  text << (waits ? "in " : "computing after ") << operation << " of group '" << group << "'";
  if (step >= 0) {
    text << ", step " << step + 1;  // as the progress counts
    if (block[0] != 0) text << ", " << block << "." << block_index;
  } else if (stage[0] != 0) {
    text << ", stage " << stage;
  }
  return text.str();
}

bool Doing::contradicts(const Doing& other) const {
  return waits && other.waits && call >= 0 && call == other.call && group_hash == other.group_hash &&
         std::strcmp(operation, other.operation) != 0;
}

// A reader that sees any new word sees that `version_` is odd, or has moved on.
void Slot::write(const Doing& doing) {
  uint64_t words[kWords];
  std::memcpy(words, &doing, sizeof doing);
  const auto version = version_.load(std::memory_order_relaxed);
  version_.store(version | 1, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  version_.store((version | 1) + 1, std::memory_order_release);
}

Slot::Image Slot::read(bool& is_whole) const {
  Image image;
  uint64_t words[kWords];
  is_whole = false;
  for (int tries = 0; tries < 100 && !is_whole; ++tries) {
    image.version = version_.load(std::memory_order_acquire);
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    is_whole = image.version % 2 == 0 && version_.load(std::memory_order_relaxed) == image.version;
  }
  std::memcpy(&image.doing, words, sizeof image.doing);
  image.pid = pid;
  image.stage = static_cast<int64_t>(stage.load());
  image.pulse = pulse;
  return image;
}

void Slot::write(const Image& image) {
  bool is_whole = false;
  if (read(is_whole).version != image.version) write(image.doing);
  version_ = image.version;
  pid = static_cast<int32_t>(image.pid);
  pulse = image.pulse;
  stage = static_cast<Stage>(image.stage);
}

struct Board::Head {
  alignas(64) std::atomic<uint32_t> claims;
  std::atomic<int32_t> exit_code;
  std::atomic<uint32_t> failed_elsewhere, store_is_gone;
};

namespace {

// Each on cache lines of its own.
constexpr size_t kRoom = 256;
static_assert(sizeof(Slot) <= kRoom);

size_t bytes_for(int ranks) { return kRoom * (static_cast<size_t>(ranks) + 1); }

}  // namespace

Board::Board(std::unique_ptr<SharedMemory> memory, std::string address, int ranks)
    : memory_(std::move(memory)), address_(std::move(address)), ranks_(ranks) {}

std::shared_ptr<Board> Board::create(int ranks) {
  auto memory = SharedMemory::create(bytes_for(ranks));
  auto address = text_of(getpid(), " ", memory->descriptor());
  return std::shared_ptr<Board>(new Board(std::move(memory), std::move(address), ranks));
}

std::shared_ptr<Board> Board::open(const std::string& address, int ranks) {
  int pid = 0, descriptor = -1;
  std::istringstream(address) >> pid >> descriptor;
  try {
    return std::shared_ptr<Board>(new Board(SharedMemory::open(pid, descriptor, bytes_for(ranks)), address, ranks));
  } catch (const CommError&) {
    return nullptr;
  }
}

// New memory reads as zeros, which is how every member of these types starts.
Slot& Board::slot(int rank) const { return *reinterpret_cast<Slot*>(memory_->bytes() + kRoom * (rank + 1)); }

bool Board::is_complete() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (slot(rank).is_local == 0) return false;
  }
  return true;
}

Board::Head& Board::head() const { return *reinterpret_cast<Head*>(memory_->bytes()); }
bool Board::claim_report() const { return head().claims.fetch_add(1) == 0; }
bool Board::is_claimed() const { return head().claims > 0; }
void Board::confirm_report(int exit_code) const { head().exit_code = exit_code; }
int Board::reported_exit_code() const { return head().exit_code; }
std::atomic<uint32_t>& Board::failed_elsewhere() const { return head().failed_elsewhere; }
std::atomic<uint32_t>& Board::store_is_gone() const { return head().store_is_gone; }

}  // namespace pardiff::comm
