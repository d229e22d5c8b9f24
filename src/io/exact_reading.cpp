#include "io/exact_reading.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace pardiff {
namespace {

constexpr std::uintptr_t kPiece = 128 << 10;  // the kernel may fetch no more for one request
constexpr std::uintptr_t kAhead = 8 * kPiece;

std::uintptr_t address_of(const std::byte* byte) { return reinterpret_cast<std::uintptr_t>(byte); }

std::uintptr_t page_of(const std::byte* byte) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return address_of(byte) / page * page;
}

// Advice that is not taken costs time and nothing else.
void advise(std::uintptr_t begin, std::uintptr_t end, int advice) {
  ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

ExactReading::ExactReading(const std::byte* begin, const std::byte* end)
    : first_(page_of(begin)), end_(address_of(end)), next_(first_) {
  advise(first_, end_, MADV_RANDOM);
}

ExactReading::~ExactReading() { advise(first_, end_, MADV_NORMAL); }

std::byte* ExactReading::copy(const std::byte* begin, const std::byte* end, std::byte* to) {
  while (begin < end) {
    const auto* const piece_end = begin + std::min<std::ptrdiff_t>(end - begin, kPiece);
    fetch_until(address_of(piece_end) + kAhead);
    to = std::copy(begin, piece_end, to);
    begin = piece_end;
  }
  return to;
}

void ExactReading::fetch_until(std::uintptr_t address) {
  for (; next_ < std::min(address, end_); next_ += kPiece) advise(next_, std::min(next_ + kPiece, end_), MADV_WILLNEED);
}

}  // namespace pardiff
