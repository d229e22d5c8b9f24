#include "support/rank_program.h"

#include <gtest/gtest.h>

namespace pardiff::testing {
namespace {

constexpr const char* kFlag = "--as-rank-of=";

}  // namespace

int run_tests_or_rank(int argc, char** argv, const RankPrograms& programs, const WorldOptions& options) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.starts_with(kFlag)) return run(programs.at(first.substr(std::string(kFlag).size())), options);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

void expect_ranks_succeed(int ranks, const std::string& program) {
  EXPECT_EQ(launch_ranks(ranks, {"ranks", kFlag + program}), 0) << ranks << " ranks of '" << program << "'";
}

}  // namespace pardiff::testing
