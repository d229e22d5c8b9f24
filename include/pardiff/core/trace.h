#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace pardiff {

/// A stretch of one rank's time.
struct TraceSpan {
  /// "stage", "step", "block", "attention", "hidden" (work of a block while its attention's messages travel), "post"
  /// (an operation among ranks is put on its way), "wait" (the rank stands still for others), or "transfer" (such an
  /// operation from its call until this rank knows it done; it may lie over the others).
  std::string category;
  std::string name;
  int64_t begin_ns = 0, end_ns = 0;  // of std::chrono::steady_clock, which all ranks of a host share
  std::string group;                 // posts, waits, transfers: the ranks' group
  int64_t bytes = 0;                 // transfers: payload sent to other ranks
};

/// The spans of one rank, in the order of their ends. Safe to use from several threads.
class Trace {
 public:
  static int64_t now_ns();

  void add(TraceSpan span);
  std::vector<TraceSpan> spans() const;

 private:
  mutable std::mutex mutex_;
  std::vector<TraceSpan> spans_;
};

/// While it lives, what runs on this thread is recorded in `trace` (nothing is if it is null).
class TraceScope {
 public:
  explicit TraceScope(Trace* trace);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* outer_;
};

/// Where this thread's spans go; null: nowhere.
Trace* current_trace();

/// Where in a run a thread is, traced or not.
struct Place {
  const char* stage = "";
  int64_t step = -1;  // from 0; -1: in none
  const char* block = "";
  int64_t block_index = -1;
};
Place current_place();

/// Records the time from here to its end, if this thread is traced. A "stage", "step" or "block" is this thread's
/// `Place` until then.
class TracedSpan {
 public:
  /// The name is `name`, followed by " <index>" if that is not negative. Both texts live as long as the program.
  TracedSpan(const char* category, const char* name, int64_t index = -1);
  ~TracedSpan();
  TracedSpan(const TracedSpan&) = delete;
  TracedSpan& operator=(const TracedSpan&) = delete;

 private:
  Trace* trace_;
  TraceSpan span_;
  Place outer_;
};

}  // namespace pardiff
