#include "support/rank_program.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace pardiff::testing {
namespace {

constexpr const char* kFlag = "--as-rank-of=";  // then the program, then the transport

}  // namespace

int run_tests_or_rank(int argc, char** argv, const RankPrograms& programs, const WorldOptions& options) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.starts_with(kFlag)) {
    auto own_options = options;
    own_options.comm = argv[2];
    return run(programs.at(first.substr(std::string(kFlag).size())), own_options);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

std::vector<std::string> rank_command(const std::string& program, const std::string& comm) {
  return {std::filesystem::read_symlink("/proc/self/exe"), kFlag + program, comm};
}

void expect_ranks_succeed(int ranks, const std::string& program, const std::string& comm) {
  EXPECT_EQ(launch_ranks(ranks, {"ranks", kFlag + program, comm}), 0)
      << ranks << " ranks of '" << program << "' over " << comm;
}

}  // namespace pardiff::testing
