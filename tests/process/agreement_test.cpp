#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "support/failure.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;

// Two ranks as a launcher of one's own would start them, on each host another command line.
std::vector<ChildResult> run_ranks(const std::vector<std::vector<std::string>>& commands) {
  const auto port = "MASTER_PORT=" + std::to_string(free_port());
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (size_t rank = 0; rank < commands.size(); ++rank) {
    const std::vector<std::string> environment = {
        "RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(commands.size()), "MASTER_ADDR=127.0.0.1", port};
    ranks.push_back(std::make_unique<ChildProcess>(commands[rank], environment));
  }
  std::vector<ChildResult> results;
  for (auto& rank : ranks) results.push_back(rank->wait());
  return results;
}

// Rank 1 differs from rank 0 in one flag: both must end with the one message that names it, and leave no picture.
void expect_disagreement(const std::string& flag, const std::string& value, const std::vector<std::string>& mentions) {
  const TemporaryFolder folder;
  const auto ours = generate_command(folder / "x.png", {"--ulysses-degree", "2"});
  auto theirs = ours;
  const auto place = std::find(theirs.begin(), theirs.end(), flag);
  if (place != theirs.end()) {
    *(place + 1) = value;
  } else {
    theirs.insert(theirs.end(), {flag, value});
  }
  const auto results = run_ranks({ours, theirs});
  const auto all = results[0].err + results[1].err;
  EXPECT_EQ(results[0].exit_code, 1) << flag << "\n" << all;
  EXPECT_EQ(results[1].exit_code, 1) << flag << "\n" << all;
  auto errors = results[0].errors();
  for (const auto& error : results[1].errors()) errors.push_back(error);
  ASSERT_EQ(errors.size(), 1u) << all;
  expect_mentions(errors[0], {"the ranks disagree on ", "rank 0", "rank 1"});
  expect_mentions(errors[0], mentions);
  EXPECT_FALSE(fs::exists(folder / "x.png"));
}

TEST(RanksThatWereStartedDifferently, NameTheSeed) {
  expect_disagreement("--seed", "1", {"inputs", "seed 0", "seed 1"});
}

TEST(RanksThatWereStartedDifferently, NameTheSize) {
  expect_disagreement("--height", "128", {"inputs", "height 64", "height 128"});
}

TEST(RanksThatWereStartedDifferently, NameTheDtype) {
  expect_disagreement("--dtype", "bfloat16", {"the dtype", "BFloat16"});
}

TEST(RanksThatWereStartedDifferently, NameTheFormOfParallelism) {
  expect_disagreement("--rotate-method", "allgather", {"parallel", "rotate alltoall", "rotate allgather"});
}

TEST(RanksThatWereStartedDifferently, NameThePartWhoseFilesDiffer) {
  const TemporaryFolder folder;
  const auto model = (folder / "other").string();
  ASSERT_EQ(run_program({"convert", model_path("flux-shapes"), model, "--max-shard-size", "3MB"}).exit_code, 0);
  expect_disagreement("--model", model, {"the transformer's files", "1 file with", "3 files with"});
}

}  // namespace
}  // namespace pardiff::testing
