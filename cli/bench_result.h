#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace pardiff::cli {

/// One case of a benchmark and what every round of it took.
struct BenchRow {
  std::string name;               // a mode, an operation or a layout
  std::string size;               // "1024 tokens"
  std::vector<double> seconds{};  // of the slowest rank, one for each round
  int64_t bytes_sent = 0;         // of rank 0 in one round
  double predicted_s = 0;         // by the planner; 0: it was not asked

  double median_s() const;
};

struct BenchResult {
  std::string what{};                                         // "attention", "collectives", "denoise"
  std::vector<std::pair<std::string, std::string>> config{};  // what was run on
  std::vector<BenchRow> rows{};

  std::string to_table() const;
  std::string to_json() const;
  std::string to_svg() const;
  /// Throws: CheckpointError naming the file for what is no result of a benchmark.
  static BenchResult from_file(const std::filesystem::path& file);
};

/// How much longer the second of two rows takes, as a ratio of medians, with the middle 95 % of what resampled rounds
/// give (bootstrap). The same for the same rows, every time.
struct Ratio {
  double value = 1, low = 1, high = 1;
};
Ratio ratio_of(const BenchRow& first, const BenchRow& second);

/// The ratio of every case that both results have, then the cases that only one has.
/// Throws: UsageError if the two are of different benchmarks or have no case in common.
std::string comparison(const BenchResult& first, const BenchResult& second);

}  // namespace pardiff::cli
