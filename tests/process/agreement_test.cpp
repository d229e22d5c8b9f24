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

TEST(RanksThatWereStartedDifferently, NameTheTransport) {
  expect_disagreement("--comm", "gloo", {"--comm", "auto on cpu", "gloo on cpu"});
}

// Rank 1 has the one problem that `flag` gives it: both must end, with its message and no picture.
void expect_failure_of_one(const std::string& flag, const std::string& value,
                           const std::vector<std::string>& mentions) {
  const TemporaryFolder folder;
  const auto ours = generate_command(folder / "x.png", {"--ulysses-degree", "2"});
  auto theirs = ours;
  const auto place = std::find(theirs.begin(), theirs.end(), flag == "--prompt-file" ? "--prompt" : flag);
  *place = flag;
  *(place + 1) = value;
  const auto results = run_ranks({ours, theirs});
  EXPECT_NE(results[0].exit_code, 0) << results[0].err;
  EXPECT_NE(results[1].exit_code, 0) << results[1].err;
  EXPECT_TRUE(results[0].errors().empty()) << results[0].err;
  ASSERT_EQ(results[1].errors().size(), 1u) << results[1].err;
  expect_mentions(results[1].errors()[0], mentions);
  EXPECT_FALSE(fs::exists(folder / "x.png"));
}

TEST(OneRank, ThatCannotReadItsPromptsEndsAll) {
  expect_failure_of_one("--prompt-file", "/nowhere/prompts.txt", {"/nowhere/prompts.txt"});
}

TEST(OneRank, ThatCannotReadItsCheckpointEndsAll) {
  const TemporaryFolder folder;
  const auto model = folder / "model";
  fs::copy(model_path("flux-shapes"), model, fs::copy_options::recursive);
  const auto weights = model / "transformer/diffusion_pytorch_model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  expect_failure_of_one("--model", model.string(), {weights.string()});
}

TEST(RanksThatWereStartedDifferently, NameThePartWhoseFilesDiffer) {
  const TemporaryFolder folder;
  const auto model = (folder / "other").string();
  ASSERT_EQ(run_program({"convert", model_path("flux-shapes"), model, "--max-shard-size", "3MB"}).exit_code, 0);
  expect_disagreement("--model", model, {"the transformer's files", "1 file with", "3 files with"});
}

}  // namespace
}  // namespace pardiff::testing
