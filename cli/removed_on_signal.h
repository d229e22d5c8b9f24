#pragma once
#include <filesystem>

namespace pardiff::cli {

/// While one lives, SIGINT, SIGTERM and SIGHUP remove a folder with all that is in it and then end the process as they
/// would have done without. A signal that the process ignores stays ignored. One at a time; the thread that fills the
/// folder must be the main one, which such signals interrupt.
class RemovedOnSignal {
 public:
  explicit RemovedOnSignal(const std::filesystem::path& folder);
  ~RemovedOnSignal();
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;
};

}  // namespace pardiff::cli
