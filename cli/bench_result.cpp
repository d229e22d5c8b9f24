#include "cli/bench_result.h"

#include <pardiff/core/check.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "cli/chart.h"
#include "cli/subcommand.h"

namespace pardiff::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kResamples = 2000;
constexpr double kTail = 0.025;  // left out on each side

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double resampled_median(const std::vector<double>& values, std::mt19937_64& random) {
  std::vector<double> drawn;
  for (size_t i = 0; i < values.size(); ++i) drawn.push_back(values[random() % values.size()]);
  return median(std::move(drawn));
}

std::string in_milliseconds(double seconds) { return four_digits(1000 * seconds); }

void print_row(std::ostream& out, const std::string& name, const std::string& size,
               const std::vector<std::string>& cells) {
  out << "  " << std::left << std::setw(34) << name << std::setw(16) << size << std::right;
  for (const auto& cell : cells) out << std::setw(12) << cell;
  out << "\n";
}

const BenchRow* find(const BenchResult& result, const BenchRow& row) {
  for (const auto& candidate : result.rows) {
    if (candidate.name == row.name && candidate.size == row.size) return &candidate;
  }
  return nullptr;
}

const char* verdict(const Ratio& ratio) {
  if (ratio.low > 1) return "slower";
  return ratio.high < 1 ? "faster" : "no difference";
}

BenchRow row_in(const Json& json) {
  BenchRow row{.name = json.at("name").get<std::string>(),
               .size = json.at("size").get<std::string>(),
               .seconds = json.at("seconds").get<std::vector<double>>(),
               .bytes_sent = json.value("bytes_sent", int64_t{0}),
               .predicted_s = json.value("predicted_seconds", 0.0)};
  const bool sound = !row.seconds.empty() && std::all_of(row.seconds.begin(), row.seconds.end(), [](double seconds) {
    return std::isfinite(seconds) && seconds > 0;
  });
  if (!sound) throw std::runtime_error("'" + row.name + "' has no times above 0");
  return row;
}

}  // namespace

double BenchRow::median_s() const { return median(seconds); }

std::string BenchResult::to_table() const {
  std::ostringstream out;
  out << what;
  for (const auto& [key, value] : config) out << ", " << key << " " << value;
  out << "\n";
  const bool predicts = std::any_of(rows.begin(), rows.end(), [](const BenchRow& row) { return row.predicted_s > 0; });
  std::vector<std::string> head = {"median ms", "least", "most", "MB sent"};
  if (predicts) head.emplace_back("planned ms");
  print_row(out, "case", "size", head);
  for (const auto& row : rows) {
    const auto [least, most] = std::minmax_element(row.seconds.begin(), row.seconds.end());
    std::vector<std::string> cells = {in_milliseconds(row.median_s()), in_milliseconds(*least), in_milliseconds(*most),
                                      four_digits(static_cast<double>(row.bytes_sent) / 1e6)};
    if (predicts) cells.push_back(row.predicted_s > 0 ? in_milliseconds(row.predicted_s) : "-");
    print_row(out, row.name, row.size, cells);
  }
  return out.str();
}

std::string BenchResult::to_json() const {
  Json json = {{"version", version_line().substr(version_line().find(' ') + 1)}, {"what", what}};
  json["config"] = Json::object();
  for (const auto& [key, value] : config) json["config"][key] = value;
  json["rows"] = Json::array();
  for (const auto& row : rows) {
    Json one = {{"name", row.name}, {"size", row.size}, {"seconds", row.seconds}, {"bytes_sent", row.bytes_sent}};
    if (row.predicted_s > 0) one["predicted_seconds"] = row.predicted_s;
    json["rows"].push_back(one);
  }
  return json.dump(2) + "\n";
}

std::string BenchResult::to_svg() const {
  BarChart chart{.title = "pardiff bench " + what, .axis = "median, ms", .parts = {}, .bars = {}};
  for (const auto& row : rows) {
    chart.bars.push_back(
        {row.name + ", " + row.size, {1000 * row.median_s()}, in_milliseconds(row.median_s()) + " ms"});
  }
  return chart.to_svg();
}

BenchResult BenchResult::from_file(const std::filesystem::path& file) {
  std::ifstream stream(file);
  check<CheckpointError>(stream.is_open(), "cannot read ", file.string(), ". Give what pardiff bench --json wrote.");
  try {
    const auto json = Json::parse(stream);
    BenchResult result{.what = json.at("what").get<std::string>(), .config = {}, .rows = {}};
    for (const auto& [key, value] : json.at("config").items()) {
      result.config.emplace_back(key, value.get<std::string>());
    }
    for (const auto& row : json.at("rows")) result.rows.push_back(row_in(row));
    return result;
  } catch (const std::exception& error) {
    fail<CheckpointError>(file.string(), " is no result of pardiff bench (", error.what(),
                          "). Give what pardiff bench --json wrote.");
  }
}

Ratio ratio_of(const BenchRow& first, const BenchRow& second) {
  std::mt19937_64 random(1);  // the same resamples every time
  std::vector<double> ratios;
  for (int i = 0; i < kResamples; ++i) {
    const double denominator = resampled_median(first.seconds, random);
    ratios.push_back(resampled_median(second.seconds, random) / denominator);
  }
  std::sort(ratios.begin(), ratios.end());
  const auto tail = static_cast<size_t>(kTail * kResamples);
  return {second.median_s() / first.median_s(), ratios[tail], ratios[ratios.size() - 1 - tail]};
}

std::string comparison(const BenchResult& first, const BenchResult& second) {
  check<UsageError>(first.what == second.what, "the first file is of bench ", first.what, ", and the second of bench ",
                    second.what, ". Give two of one kind.");
  std::ostringstream out;
  out << first.what
      << ": the second file's time as a multiple of the first's, with the middle 95 % of resampled rounds\n";
  print_row(out, "case", "size", {"first ms", "second ms", "ratio", "from", "to"});
  size_t common = 0;
  for (const auto& row : first.rows) {
    const auto* other = find(second, row);
    if (!other) continue;
    ++common;
    const auto ratio = ratio_of(row, *other);
    std::ostringstream line;
    print_row(line, row.name, row.size,
              {in_milliseconds(row.median_s()), in_milliseconds(other->median_s()), four_digits(ratio.value),
               four_digits(ratio.low), four_digits(ratio.high)});
    auto text = line.str();
    text.pop_back();
    out << text << "  " << verdict(ratio) << "\n";
  }
  check<UsageError>(common > 0, "the two files have no case in common. Give runs of the same cases and sizes.");
  for (const auto* each : {&first, &second}) {
    const auto& other = each == &first ? second : first;
    for (const auto& row : each->rows) {
      if (!find(other, row))
        out << "  only in the " << (each == &first ? "first" : "second") << ": " << row.name << ", " << row.size
            << "\n";
    }
  }
  return out.str();
}

}  // namespace pardiff::cli
