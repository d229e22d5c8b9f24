#include <pardiff/core/trace.h>

#include <chrono>
#include <string_view>
#include <utility>

namespace pardiff {
namespace {

// Ranks may be threads of one process, and a rank's work stays on its thread. Nothing but the recording depends on it.
thread_local Trace* traced_to = nullptr;
thread_local Place place;

Place within(Place outer, std::string_view category, const char* name, int64_t index) {
  if (category == "stage") outer.stage = name;
  if (category == "step") outer.step = index;
  if (category == "block") {
    outer.block = name;
    outer.block_index = index;
  }
  return outer;
}

}  // namespace

int64_t Trace::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Trace::add(TraceSpan span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<TraceSpan> Trace::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

TraceScope::TraceScope(Trace* trace) : outer_(std::exchange(traced_to, trace)) {}
TraceScope::~TraceScope() { traced_to = outer_; }

Trace* current_trace() { return traced_to; }

Place current_place() { return place; }

TracedSpan::TracedSpan(const char* category, const char* name, int64_t index) : trace_(traced_to), outer_(place) {
  place = within(place, category, name, index);
  if (!trace_) return;
  span_.category = category;
  span_.name = name;
  if (index >= 0) span_.name.append(1, ' ').append(std::to_string(index));
  span_.begin_ns = Trace::now_ns();
}

TracedSpan::~TracedSpan() {
  place = outer_;
  if (!trace_) return;
  span_.end_ns = Trace::now_ns();
  trace_->add(std::move(span_));
}

}  // namespace pardiff
