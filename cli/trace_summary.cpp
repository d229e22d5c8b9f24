#include "cli/trace_summary.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace pardiff::cli {
namespace {

using Json = nlohmann::ordered_json;

// One stage of one rank; a stage that ran in parts counts once.
struct Stage {
  std::string name;
  int64_t total_ns = 0, post_ns = 0, wait_ns = 0, bytes = 0;
};

bool lies_in(const TraceSpan& span, const TraceSpan& stage) {
  return span.begin_ns >= stage.begin_ns && span.begin_ns < stage.end_ns;
}

// In the order of their beginnings. Nothing waits within a wait, so that times may be added.
std::vector<Stage> stages_of(const std::vector<TraceSpan>& spans) {
  std::vector<TraceSpan> parts;
  for (const auto& span : spans) {
    if (span.category == "stage") parts.push_back(span);
  }
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  std::vector<Stage> stages;
  for (const auto& part : parts) {
    auto stage =
        std::find_if(stages.begin(), stages.end(), [&](const Stage& known) { return known.name == part.name; });
    if (stage == stages.end()) stage = stages.insert(stages.end(), Stage{.name = part.name});
    stage->total_ns += part.end_ns - part.begin_ns;
    for (const auto& span : spans) {
      if (!lies_in(span, part)) continue;
      if (span.category == "post") stage->post_ns += span.end_ns - span.begin_ns;
      if (span.category == "wait") stage->wait_ns += span.end_ns - span.begin_ns;
      if (span.category == "transfer") stage->bytes += span.bytes;
    }
  }
  return stages;
}

Json json_of(const std::vector<Stage>& stages) {
  auto rows = Json::array();
  for (const auto& stage : stages) {
    rows.push_back({stage.name, stage.total_ns, stage.post_ns, stage.wait_ns, stage.bytes});
  }
  return rows;
}

std::string line_of(const std::string& stage, const std::string& rank, const std::vector<std::string>& cells) {
  std::ostringstream line;
  line << std::left << std::setw(10) << stage << std::right << std::setw(5) << rank;
  for (const auto& cell : cells) line << std::setw(12) << cell;
  return line.str();
}

std::string with_digits(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string line_of(const Json& row, size_t rank) {
  const auto seconds = [&](double ns) { return with_digits(ns * 1e-9, 3); };
  const auto total = row[1].get<double>(), post = row[2].get<double>(), wait = row[3].get<double>();
  return line_of(row[0].get<std::string>(), std::to_string(rank),
                 {seconds(total), seconds(total - post - wait), seconds(post), seconds(wait),
                  with_digits(row[4].get<double>() * 1e-6, 3)});
}

}  // namespace

std::vector<std::string> trace_summary(const Trace& trace, World& world) {
  const auto texts = world.texts_of_all(json_of(stages_of(trace.spans())).dump());
  if (world.rank() != 0) return {};
  std::vector<Json> ranks;
  for (const auto& text : texts) ranks.push_back(Json::parse(text));
  std::vector<std::string> names, lines = {line_of("stage", "rank", {"s", "compute", "posting", "waiting", "MB sent"})};
  for (const auto& rank : ranks) {
    for (const auto& row : rank) {
      const auto name = row[0].get<std::string>();
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  for (const auto& name : names) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const auto& row : ranks[rank]) {
        if (row[0] == name) lines.push_back(line_of(row, rank));
      }
    }
  }
  return lines;
}

}  // namespace pardiff::cli
