#include "cli/trace_file.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

namespace pardiff::cli {
namespace {

using Json = nlohmann::ordered_json;

// Hosts that were started apart have clocks of their own.
std::string clock_identity() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

Json json_of(const std::vector<TraceSpan>& spans) {
  auto rows = Json::array();
  for (const auto& span : spans) {
    rows.push_back({span.category, span.name, span.begin_ns, span.end_ns, span.group, span.bytes});
  }
  return rows;
}

TraceSpan span_of(const Json& row) {
  return {row[0].get<std::string>(), row[1].get<std::string>(), row[2].get<int64_t>(),
          row[3].get<int64_t>(),     row[4].get<std::string>(), row[5].get<int64_t>()};
}

// Every rank's spans on rank 0's clock.
std::vector<std::vector<TraceSpan>> on_one_clock(const std::vector<std::string>& texts) {
  std::vector<std::vector<TraceSpan>> ranks;
  Json first;
  for (const auto& text : texts) {
    const auto rank = Json::parse(text);
    if (first.is_null()) first = rank;
    const bool shares = rank["clock"] == first["clock"];
    const int64_t ahead = shares ? 0 : rank["barrier_ns"].get<int64_t>() - first["barrier_ns"].get<int64_t>();
    std::vector<TraceSpan> own;
    for (const auto& row : rank["spans"]) {
      own.push_back(span_of(row));
      own.back().begin_ns -= ahead;
      own.back().end_ns -= ahead;
    }
    ranks.push_back(std::move(own));
  }
  return ranks;
}

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

class Events {
 public:
  explicit Events(int64_t origin_ns) : origin_ns_(origin_ns) {}

  void add_rank(int rank, const std::vector<TraceSpan>& spans) {
    events_.push_back(
        {{"ph", "M"}, {"name", "process_name"}, {"pid", rank}, {"args", {{"name", "rank " + std::to_string(rank)}}}});
    for (const auto& span : spans) span.category == "transfer" ? add_transfer(rank, span) : add_work(rank, span);
  }
  Json take() { return std::move(events_); }

 private:
  Json event(const char* phase, int rank, const TraceSpan& span, int64_t at_ns) const {
    return {{"ph", phase},       {"cat", span.category},
            {"name", span.name}, {"pid", rank},
            {"tid", 0},          {"ts", microseconds(at_ns - origin_ns_)}};
  }

  void add_work(int rank, const TraceSpan& span) {
    auto work = event("X", rank, span, span.begin_ns);
    work["dur"] = microseconds(span.end_ns - span.begin_ns);
    if (!span.group.empty()) work["args"] = {{"group", span.group}};
    events_.push_back(std::move(work));
  }

  // Transfers overlap each other and the work, so they are pairs of events with an id instead of stretches of a thread.
  void add_transfer(int rank, const TraceSpan& span) {
    auto begin = event("b", rank, span, span.begin_ns), end = event("e", rank, span, span.end_ns);
    begin["id"] = end["id"] = next_transfer_++;
    begin["args"] = {{"group", span.group}, {"bytes", span.bytes}};
    events_.push_back(std::move(begin));
    events_.push_back(std::move(end));
  }

  int64_t origin_ns_;
  int64_t next_transfer_ = 0;
  Json events_ = Json::array();
};

}  // namespace

std::string gather_trace(const Trace& trace, World& world) {
  const auto spans = json_of(trace.spans());
  barrier(world.host_group());
  const auto now = Trace::now_ns();
  const Json own = {{"clock", clock_identity()}, {"barrier_ns", now}, {"spans", spans}};
  const auto texts = world.texts_of_all(own.dump());
  if (world.rank() != 0) return {};
  const auto ranks = on_one_clock(texts);
  auto origin = std::numeric_limits<int64_t>::max();
  for (const auto& rank : ranks) {
    for (const auto& span : rank) origin = std::min(origin, span.begin_ns);
  }
  Events events(origin);
  for (size_t rank = 0; rank < ranks.size(); ++rank) events.add_rank(static_cast<int>(rank), ranks[rank]);
  return Json({{"displayTimeUnit", "ms"}, {"traceEvents", events.take()}}).dump() + "\n";
}

}  // namespace pardiff::cli
