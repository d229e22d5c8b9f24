#include "io/mapped_reading.h"

#include <pardiff/core/check.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

namespace pardiff {

// Slots are only ever added, and used again: the handler walks their list without a lock.
struct WatchedMapping::Slot {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // whole pages; 0: not in use
  std::atomic<bool> has_failed{false};
  std::string path;
  int64_t size = 0;
  int descriptor = -1;
  struct timespec written = {};
  Slot* next = nullptr;
};

namespace {

using Slot = WatchedMapping::Slot;

std::atomic<Slot*> first_slot{nullptr};
std::atomic<int> readings{0};
std::mutex slots_mutex;  // whoever takes, frees or checks slots; never the handler
struct sigaction handler_before = {};

Slot* slot_at(std::uintptr_t address) {
  for (Slot* slot = first_slot.load(); slot != nullptr; slot = slot->next) {
    if (slot->begin <= address && address < slot->end) return slot;
  }
  return nullptr;
}

// Where a page cannot be read, those after it seldom can: a file that has become shorter lacks them all.
bool read_as_zeros_from(std::uintptr_t address, const Slot& slot) {
  const std::uintptr_t page = address & ~(static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)) - 1);
  return ::mmap(reinterpret_cast<void*>(page), slot.end - page, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

[[noreturn]] void end_process(const Slot& slot) {
  const auto say = [](const char* text, std::size_t size) {
    while (size > 0) {
      const ssize_t count = ::write(STDERR_FILENO, text, size);
      if (count <= 0) return;
      text += count;
      size -= static_cast<std::size_t>(count);
    }
  };
  constexpr char kBefore[] = "pardiff: error: cannot read ";
  constexpr char kAfter[] = ": it became shorter while it was mapped, or its disk fails. Restore it and start again.\n";
  say(kBefore, sizeof kBefore - 1);
  say(slot.path.data(), slot.path.size());
  say(kAfter, sizeof kAfter - 1);
  ::_exit(1);
}

// Somebody else's bus error is his who was here before, or ends the process as ever.
void pass_on(int signal, siginfo_t* info, void* context) {
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) return handler_before.sa_sigaction(signal, info, context);
  if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN) {
    return handler_before.sa_handler(signal);
  }
  ::signal(signal, SIG_DFL);
  if (info->si_code <= 0) ::raise(signal);  // sent, not met: it would not come again by itself
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Slot* const slot = info->si_code > 0 ? slot_at(address) : nullptr;
  if (slot == nullptr) return pass_on(signal, info, context);
  slot->has_failed = true;
  if (readings == 0 || !read_as_zeros_from(address, *slot)) end_process(*slot);
  errno = error;
}

void install_handler() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &handler_before);
}

struct stat status_of(int descriptor) {
  struct stat status = {};
  ::fstat(descriptor, &status);
  return status;
}

Slot* free_slot() {
  for (Slot* slot = first_slot.load(); slot != nullptr; slot = slot->next) {
    if (slot->begin == 0) return slot;
  }
  auto* const slot = new Slot;
  slot->next = first_slot.load();
  first_slot = slot;
  return slot;
}

void check_file(const Slot& slot) {
  const auto status = status_of(slot.descriptor);
  check<CheckpointError>(status.st_size >= slot.size, "cannot use ", slot.path, " any more: it had ", slot.size,
                         " bytes when it was opened, and has ", status.st_size, " now. Restore it and start again.");
  check<CheckpointError>(!slot.has_failed, "cannot use ", slot.path,
                         " any more: parts of it could not be read (it was shorter for a while, or its disk fails). "
                         "Restore it and start again.");
  check<CheckpointError>(status.st_mtim.tv_sec == slot.written.tv_sec && status.st_mtim.tv_nsec == slot.written.tv_nsec,
                         "cannot use ", slot.path,
                         " any more: it was written to after it had been opened. Leave it alone and start again.");
}

}  // namespace

MappedReading::MappedReading() { ++readings; }
MappedReading::~MappedReading() { --readings; }

void MappedReading::finish() const {
  const std::lock_guard lock(slots_mutex);
  for (const Slot* slot = first_slot.load(); slot != nullptr; slot = slot->next) {
    if (slot->begin != 0) check_file(*slot);
  }
}

WatchedMapping::WatchedMapping(std::byte* data, int64_t size, int descriptor, const std::string& path) {
  static std::once_flag once;
  std::call_once(once, install_handler);
  const std::lock_guard lock(slots_mutex);
  slot_ = free_slot();
  slot_->path = path;
  slot_->size = size;
  slot_->descriptor = descriptor;
  slot_->written = status_of(descriptor).st_mtim;
  slot_->has_failed = false;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  slot_->end = begin + (static_cast<std::uintptr_t>(size) + page - 1) / page * page;
  slot_->begin = begin;
}

WatchedMapping::~WatchedMapping() {
  const std::lock_guard lock(slots_mutex);
  slot_->begin = 0;
  slot_->end = 0;
}

}  // namespace pardiff
