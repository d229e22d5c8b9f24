#include "cli/removed_on_signal.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <string>
#include <string_view>

namespace pardiff::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
struct sigaction before[std::size(kSignals)];
std::string* folder_to_remove = nullptr;  // changes only while no handler is installed

int open_folder(int parent, const char* name) {
  return ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// All here is what a signal handler may call: neither memory nor locks are taken.
void remove_tree(int parent, const char* name);

// Whether anything was removed.
bool remove_entries(int folder) {
  alignas(dirent64) char buffer[4096];
  bool any = false;
  for (ssize_t size = 0; (size = ::getdents64(folder, buffer, sizeof buffer)) > 0;) {
    for (ssize_t at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const dirent64*>(buffer + at);
      at += entry->d_reclen;
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (::unlinkat(folder, entry->d_name, 0) != 0) remove_tree(folder, entry->d_name);
      any = any || ::faccessat(folder, entry->d_name, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
    }
  }
  return any;
}

void remove_tree(int parent, const char* name) {
  const int folder = open_folder(parent, name);
  if (folder < 0) return;
  while (remove_entries(folder)) ::lseek(folder, 0, SEEK_SET);  // a listing may miss entries while others are removed
  ::close(folder);
  ::unlinkat(parent, name, AT_REMOVEDIR);
}

void on_signal(int number) {
  remove_tree(AT_FDCWD, folder_to_remove->c_str());
  ::signal(number, SIG_DFL);
  ::raise(number);  // heard when this returns
}

}  // namespace

RemovedOnSignal::RemovedOnSignal(const std::filesystem::path& folder) {
  folder_to_remove = new std::string(folder.string());
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int number : kSignals) sigaddset(&action.sa_mask, number);
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &action, &before[i]);
    if (before[i].sa_handler == SIG_IGN) sigaction(kSignals[i], &before[i], nullptr);  // as nohup wants it
  }
}

RemovedOnSignal::~RemovedOnSignal() {
  for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before[i], nullptr);
  delete folder_to_remove;
  folder_to_remove = nullptr;
}

}  // namespace pardiff::cli
