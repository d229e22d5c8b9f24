// The planner's model of the reference against the reference's own published rows (tests/data/plan/headline.json). A
// kind is fitted to its Ulysses row at 1024x1024, one number; the other rows are predicted.
#include <pardiff/plan/planner.h>

#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "support/failure.h"

namespace pardiff::plan {
namespace {

constexpr int kRanks = 4;
// Text encoders (CLIP-L, T5-XXL) and VAE of FLUX.1.
constexpr int64_t kOtherParameters = 123'060'480 + 4'762'310'656 + 83'819'683;

Work flux_dev(int64_t size) {
  Work work{.other_parameters = kOtherParameters, .height = size, .width = size, .steps = 50};
  work.transformer.guidance_embeds = true;
  work.vae.block_out_channels = {128, 256, 512, 512};
  work.vae.latent_channels = 16;
  return work;
}

ParallelConfig config_of(const std::string& mode) {
  ContextParallelConfig context{.rotate_method = "allgather"};
  const bool unified = mode == "unified";
  if (unified || mode.starts_with("ring")) context.ring_degree = unified ? 2 : kRanks;
  if (unified || mode.starts_with("ulysses")) context.ulysses_degree = unified ? 2 : kRanks;
  context.ring_anything = mode == "ring_anything";
  context.ulysses_anything = mode == "ulysses_anything";
  return {.context_parallel_config = context};
}

struct Row {
  std::string table, mode;
  int64_t size;
  double measured, predicted;                // seconds a step
  double measured_memory, predicted_memory;  // bytes
};

class PublishedRows : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ifstream file(PARDIFF_TEST_DATA "/plan/headline.json");
    json() = nlohmann::json::parse(file);
    for (const auto& table : json()["tables"]) add(table);
    print();
  }
  static nlohmann::json& json() {
    static nlohmann::json figures;
    return figures;
  }
  static std::vector<Row>& rows() {
    static std::vector<Row> all;
    return all;
  }

  static Machine kind(const std::string& name) {
    for (const auto& machine : machines_in(PARDIFF_MACHINES)) {
      if (machine.name == name) return machine;
    }
    throw std::runtime_error("no kind " + name);
  }

  static void add(const nlohmann::json& table) {
    const double fitted_to = table["rows"][0]["step_ms"].get<double>() / 1000;
    const auto machine =
        fitted(kind(table["kind"]), flux_dev(1024), config_of("ulysses"), kRanks, fitted_to, Profile::kReference);
    std::cout << table["title"].get<std::string>() << ": link " << machine.link.bytes_per_s / 1e9 << " GB/s, launch "
              << machine.launch_s * 1e6 << " us\n";
    for (const auto& row : table["rows"]) {
      const auto work = flux_dev(row["size"]);
      const auto config = config_of(row["mode"]);
      rows().push_back({table["title"], row["mode"], row["size"], row["step_ms"].get<double>() / 1000,
                        step_time(work, config, machine, kRanks, Profile::kReference).total(),
                        row["peak_gb"].get<double>() * 1e9,
                        rank_memory(work, config, kRanks, Profile::kReference).total()});
    }
  }

  static void print() {
    std::cout << std::fixed << std::setprecision(1);
    for (const auto& row : rows()) {
      std::cout << std::left << std::setw(16) << row.table << std::setw(18) << row.mode << std::setw(6) << row.size
                << row.measured * 1e3 << " ms, predicted " << row.predicted * 1e3 << " (" << std::showpos
                << 100 * (row.predicted / row.measured - 1) << std::noshowpos << " %); " << row.measured_memory / 1e9
                << " GB, predicted " << row.predicted_memory / 1e9 << " (" << std::showpos
                << 100 * (row.predicted_memory / row.measured_memory - 1) << std::noshowpos << " %)\n";
    }
  }

  static const Row& row(const std::string& table, const std::string& mode, int64_t size = 1024) {
    for (const auto& row : rows()) {
      if (row.table == table && row.mode == mode && row.size == size) return row;
    }
    throw std::runtime_error("no row " + table + " " + mode);
  }
};

TEST_F(PublishedRows, FittingExplainsTheFittedRow) {
  for (const auto* table : {"H100", "L20", "RTX 4090 48 GB"}) {
    const auto& fitted_row = row(table, "ulysses");
    EXPECT_NEAR(fitted_row.predicted / fitted_row.measured, 1, 1e-6) << table;
  }
}

// Of every two rows of a table at one size, the slower is predicted to be the slower; under 1 % apart is a tie.
TEST_F(PublishedRows, OrderOfModesIsRight) {
  constexpr double kTie = 1.01;
  int compared = 0;
  for (const auto& a : rows()) {
    for (const auto& b : rows()) {
      if (a.table != b.table || a.size != b.size || a.measured < kTie * b.measured) continue;
      EXPECT_GT(a.predicted, b.predicted) << a.table << ": " << a.mode << " and " << b.mode << " at " << a.size;
      ++compared;
    }
  }
  EXPECT_GE(compared, 9);
}

TEST_F(PublishedRows, ExtraTimeOverUlyssesOnPcieMachinesIsWithin35Percent) {
  for (const auto* table : {"L20", "RTX 4090 48 GB"}) {
    const auto& ulysses = row(table, "ulysses");
    for (const auto* mode : {"ring", "unified"}) {
      const auto& other = row(table, mode);
      const double measured = other.measured - ulysses.measured, predicted = other.predicted - ulysses.predicted;
      EXPECT_NEAR(predicted / measured, 1, 0.35) << table << ", " << mode;
    }
  }
}

TEST_F(PublishedRows, TheSmallerPictureTakesThePublishedShareOfTheTime) {
  for (const auto& [table, mode] : {std::pair{"L20", "ulysses_anything"},
                                    {"RTX 4090 48 GB", "ulysses_anything"},
                                    {"RTX 4090 48 GB", "ring_anything"}}) {
    const auto &large = row(table, mode, 1024), &small = row(table, mode, 1008);
    const double measured = small.measured / large.measured, predicted = small.predicted / large.predicted;
    EXPECT_NEAR(predicted / measured, 1, 0.02) << table << ", " << mode;
  }
}

// The H100's ring row holds 22 GB more than its algorithm does: docs/planner.md states it as it is.
TEST_F(PublishedRows, MemoryIsWithin10PercentButForTheRingOnH100) {
  for (const auto& each : rows()) {
    if (each.table == "H100" && each.mode == "ring") continue;
    EXPECT_NEAR(each.predicted_memory / each.measured_memory, 1, 0.1) << each.table << ", " << each.mode;
  }
}

TEST_F(PublishedRows, LayoutsThatFailedAreRefusedWithTheReason) {
  int refused = 0;
  for (const auto& table : json()["tables"]) {
    for (const auto& mode : table.value("fails", nlohmann::json::array())) {
      const auto reason = why_refused(flux_dev(1008), config_of(mode), kRanks, Profile::kReference);
      EXPECT_NE(reason.find("3969 tokens cannot be cut equally among 4"), std::string::npos) << mode << ": " << reason;
      ++refused;
    }
  }
  EXPECT_EQ(refused, 6);
}

}  // namespace
}  // namespace pardiff::plan
