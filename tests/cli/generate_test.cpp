#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/io/image.h>
#include <pardiff/io/safetensors.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "support/failure.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

using Json = nlohmann::json;

ChildResult generate(const TemporaryFolder& folder, const std::string& name,
                     const std::vector<std::string>& flags = {}) {
  const auto result = run_child(generate_command(folder / name, flags));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result;
}

TEST(Generate, GivesTheSameBytesForTheSameCommand) {
  const TemporaryFolder folder;
  generate(folder, "first.png");
  generate(folder, "second.png");
  generate(folder, "other.png", {"--guidance-scale", "9"});
  EXPECT_EQ(content_of(folder / "first.png"), content_of(folder / "second.png"));
  EXPECT_NE(Image::load(folder / "first.png").rgb, Image::load(folder / "other.png").rgb);
}

struct Layout {
  const char* name;
  std::vector<std::string> flags;
  std::vector<std::string> picture_flags = {};  // also given to the one rank
};

class GenerateOnRanks : public ::testing::TestWithParam<Layout> {};

TEST_P(GenerateOnRanks, MatchesOneRank) {
  const TemporaryFolder folder;
  const auto dump_flags = [&](const char* name) {
    std::vector<std::string> flags = {"--dump-tensors", folder / name};
    flags.insert(flags.end(), GetParam().picture_flags.begin(), GetParam().picture_flags.end());
    return flags;
  };
  generate(folder, "one.png", dump_flags("one.safetensors"));
  auto flags = dump_flags("many.safetensors");
  flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
  generate(folder, "many.png", flags);
  const auto one = SafetensorsFile::open(folder / "one.safetensors");
  const auto many = SafetensorsFile::open(folder / "many.safetensors");
  ASSERT_EQ(one.tensors().size(), many.tensors().size());
  for (const auto& info : one.tensors()) {
    const auto expected = one.tensor(info.name), actual = many.tensor(info.name);
    EXPECT_LE(absolute_error(actual, expected), info.name == "image" ? 1e-5 : 2e-5) << info.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GenerateOnRanks,
    ::testing::Values(
        Layout{"ulysses", {"--ulysses-degree", "2"}}, Layout{"ring", {"--ring-degree", "2"}},
        Layout{"gathering_ring", {"--ring-degree", "2", "--rotate-method", "allgather"}},
        Layout{"tensor_parallel", {"--tp-degree", "2"}},
        Layout{"data_parallel", {"--dp-degree", "2"}, {"--num-images", "3"}},
        Layout{"shared_guidance", {"--cfg-degree", "2"}, {"--negative-prompt", "a square", "--true-cfg-scale", "2"}}),
    [](const auto& instance) { return instance.param.name; });

TEST(Generate, DumpsTensorsOfTheAgreedNamesAndShapes) {
  const TemporaryFolder folder;
  generate(folder, "picture.png", {"--dump-tensors", folder / "dump.safetensors"});
  const auto dump = SafetensorsFile::open(folder / "dump.safetensors");
  EXPECT_EQ(dump.tensors().size(), 5u);
  EXPECT_EQ(dump.info("image").shape, (std::vector<int64_t>{1, 3, 64, 64}));
  EXPECT_EQ(dump.info("image").dtype, at::kFloat);
  EXPECT_EQ(dump.info("latents.0").shape, (std::vector<int64_t>{1, 16, 64}));
  EXPECT_TRUE(dump.contains("latents.1"));
  EXPECT_EQ(dump.info("token_ids.clip").shape, (std::vector<int64_t>{1, 77}));
  EXPECT_EQ(dump.info("token_ids.t5").shape, (std::vector<int64_t>{1, 16}));
  EXPECT_EQ(dump.info("token_ids.t5").dtype, at::kLong);
  EXPECT_EQ(Image::from_tensor(dump.tensor("image")[0]).rgb, Image::load(folder / "picture.png").rgb);
}

TEST(Generate, ReportsWhatTheContractNames) {
  const TemporaryFolder folder;
  generate(folder, "picture.png", {"--report", folder / "report.json", "--ulysses-degree", "2"});
  const auto report = Json::parse(content_of(folder / "report.json"));
  EXPECT_EQ(report.size(), 5u);
  EXPECT_TRUE(report["version"].is_string());
  EXPECT_EQ(report["config"]["ulysses_degree"], 2);
  for (const char* phase : {"load", "encode", "prepare", "denoise", "decode", "total"}) {
    EXPECT_GT(report["seconds"][phase].get<double>(), 0) << phase;
  }
  EXPECT_EQ(report["step_seconds"].size(), 2u);
  ASSERT_EQ(report["ranks"].size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const auto& row = report["ranks"][static_cast<size_t>(rank)];
    EXPECT_EQ(row["rank"], rank);
    EXPECT_GT(row["peak_rss_bytes"].get<int64_t>(), 1'000'000);
    EXPECT_GT(row["parameter_bytes"].get<int64_t>(), row["transformer_parameter_bytes"].get<int64_t>());
    EXPECT_TRUE(row["private_weight_bytes"].is_number());
    EXPECT_TRUE(row["peak_remote_kv_bytes"].is_number());
    EXPECT_EQ(row["latents_sha256"].get<std::string>().size(), 64u);
    EXPECT_EQ(row["latents_sha256"], report["ranks"][0]["latents_sha256"]);
    // 9 blocks, 2 steps, once in and once out
    EXPECT_EQ(row["communication"]["all_to_all"]["calls"], 9 * 2 * 2);
    EXPECT_GT(row["communication"]["all_to_all"]["bytes_sent"].get<int64_t>(), 0);
    EXPECT_TRUE(row.contains("communication_total"));
  }
}

// What a trace says of one rank.
class RankTrace {
 public:
  RankTrace(const Json& trace, int rank) {
    for (const auto& event : trace["traceEvents"]) {
      if (event["pid"] == rank) events_.push_back(event);
    }
  }

  // [begin, end] of the stretches of a category.
  std::vector<std::pair<double, double>> stretches(const std::string& category) const {
    std::vector<std::pair<double, double>> found;
    for (const auto& event : events_) {
      if (event.value("cat", "") != category) continue;
      const auto begin = event["ts"].get<double>();
      if (event["ph"] == "X") found.emplace_back(begin, begin + event["dur"].get<double>());
      if (event["ph"] == "b") found.emplace_back(begin, 0);
      if (event["ph"] == "e") found.back().second = begin;  // its begin is the event before
    }
    return found;
  }

  OperationCount transfers(const std::string& operation) const {
    OperationCount count;
    for (const auto& event : events_) {
      if (event["ph"] != "b" || event["name"] != operation) continue;
      count.calls += 1;
      count.bytes_sent += event["args"]["bytes"].get<int64_t>();
    }
    return count;
  }

 private:
  std::vector<Json> events_;
};

bool lies_in(const std::pair<double, double>& inner, const std::vector<std::pair<double, double>>& outer) {
  return std::any_of(outer.begin(), outer.end(), [&](const auto& stretch) {
    return stretch.first <= inner.first && inner.second <= stretch.second;
  });
}

TEST(Generate, TracesEveryRankOnOneClock) {
  const TemporaryFolder folder;
  generate(folder, "picture.png",
           {"--trace", folder / "trace.json", "--report", folder / "report.json", "--ring-degree", "2"});
  const auto trace = Json::parse(content_of(folder / "trace.json"));
  const auto report = Json::parse(content_of(folder / "report.json"));
  std::vector<std::pair<double, double>> steps_of_0;
  for (int rank = 0; rank < 2; ++rank) {
    const RankTrace own(trace, rank);
    const auto steps = own.stretches("step"), blocks = own.stretches("block");
    auto attentions = own.stretches("attention");  // the text encoders and the decoder have some too
    std::erase_if(attentions, [&](const auto& attention) { return !lies_in(attention, steps); });
    EXPECT_EQ(own.stretches("stage").size(), 6u);
    ASSERT_EQ(steps.size(), 2u);
    EXPECT_EQ(attentions.size(), 2 * blocks.size());
    for (const auto& step : steps) EXPECT_TRUE(lies_in(step, own.stretches("stage")));
    for (const auto& block : blocks) EXPECT_TRUE(lies_in(block, steps));
    for (const auto& attention : attentions) EXPECT_TRUE(lies_in(attention, blocks));
    // Of each attention's two blocks the rank's own is computed while the other's is on its way.
    const auto transfers = own.stretches("transfer");
    const auto hidden = std::count_if(attentions.begin(), attentions.end(),
                                      [&](const auto& attention) { return lies_in(attention, transfers); });
    EXPECT_EQ(hidden, static_cast<int64_t>(blocks.size()));
    const auto& counted = report["ranks"][static_cast<size_t>(rank)]["communication_total"]["send"];
    EXPECT_EQ(own.transfers("send").calls, counted["calls"].get<int64_t>());
    EXPECT_EQ(own.transfers("send").bytes_sent, counted["bytes_sent"].get<int64_t>());
    // A step ends on one rank only after the other began it, since each needs the other's blocks.
    if (rank == 0) steps_of_0 = steps;
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_LT(steps_of_0[i].first, steps[i].second);
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_LT(steps[i].first, steps_of_0[i].second);
  }
}

// The MLP of single blocks is computed in two parts, while attention's messages go out and come back.
TEST(Generate, TracesWhatSingleBlocksHideBehindTheirExchanges) {
  const TemporaryFolder folder;
  generate(folder, "picture.png", {"--trace", folder / "trace.json", "--ulysses-degree", "2"});
  const auto trace = Json::parse(content_of(folder / "trace.json"));
  for (int rank = 0; rank < 2; ++rank) {
    const RankTrace own(trace, rank);
    const auto hidden = own.stretches("hidden"), transfers = own.stretches("transfer");
    EXPECT_FALSE(hidden.empty());
    for (const auto& part : hidden) EXPECT_TRUE(lies_in(part, transfers));
    for (const auto& part : hidden) EXPECT_FALSE(lies_in(part, own.stretches("attention")));
  }
}

TEST(Generate, SumsUpWhereEveryRanksTimeWentWhenVerbose) {
  const TemporaryFolder folder;
  const auto result = run_child(generate_command(
      folder / "picture.png", {"--verbose", "--ulysses-degree", "2", "--report", folder / "report.json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = Json::parse(content_of(folder / "report.json"));
  // "pardiff: denoise 1 SECONDS COMPUTE POSTING WAITING MB"
  std::istringstream lines(result.err);
  int denoising = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string program, stage;
    int rank = 0;
    double seconds = 0, compute = 0, posting = 0, waiting = 0, megabytes = 0;
    words >> program >> stage >> rank >> seconds >> compute >> posting >> waiting >> megabytes;
    if (!words || stage != "denoise") continue;
    EXPECT_EQ(rank, denoising++);
    EXPECT_NEAR(seconds, compute + posting + waiting, 0.005);
    EXPECT_GT(compute, 0);
    int64_t sent = 0;
    for (const auto& [operation, count] : report["ranks"][static_cast<size_t>(rank)]["communication"].items()) {
      sent += count["bytes_sent"].get<int64_t>();
    }
    EXPECT_GE(megabytes, static_cast<double>(sent) / 1e6 - 0.001);
  }
  EXPECT_EQ(denoising, 2) << result.err;
  expect_mentions(result.err, {"stage", "posting", "waiting", "MB sent", "decode"});
}

TEST(Generate, StoresItsParametersInThePicture) {
  const TemporaryFolder folder;
  generate(folder, "picture.png");
  const auto text = Image::read_text(folder / "picture.png");
  EXPECT_EQ(text.at("Description"), "a large yellow star on a purple background");
  const auto parameters = Json::parse(text.at("parameters"));
  EXPECT_EQ(parameters["seed"], 0);
  EXPECT_EQ(parameters["steps"], 2);
  EXPECT_EQ(parameters["width"], 64);
}

TEST(Generate, NumbersSeveralPicturesInTheReferencesOrder) {
  const TemporaryFolder folder;
  generate(folder, "batch.png", {"--prompt", "a red circle on a white background", "--num-images", "2"});
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"batch-0.png", "batch-1.png", "batch-2.png", "batch-3.png"}));
  EXPECT_EQ(Image::read_text(folder / "batch-1.png").at("Description"), "a large yellow star on a purple background");
  EXPECT_EQ(Image::read_text(folder / "batch-2.png").at("Description"), "a red circle on a white background");
}

TEST(Generate, ReadsPromptFilesOfAnyEditor) {
  const TemporaryFolder folder;
  put(folder / "prompts.txt",
      "\xef\xbb\xbf"
      "a red circle\r\n\r\n \t\r\na caf\xc3\xa9 \r\n");
  auto command = generate_command(folder / "batch.png", {"--prompt-file", folder / "prompts.txt"});
  const auto prompt = std::find(command.begin(), command.end(), "--prompt");
  command.erase(prompt, prompt + 2);
  const auto result = run_child(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"batch-0.png", "batch-1.png", "prompts.txt"}));
  EXPECT_EQ(Image::read_text(folder / "batch-0.png").at("Description"), "a red circle");
  EXPECT_EQ(Image::read_text(folder / "batch-1.png").at("Description"), "a caf\xc3\xa9 ");
}

TEST(Generate, SaysShortlyWhatAHugePromptLoses) {
  const TemporaryFolder folder;
  std::string words, one_word;
  for (int i = 0; i < 5000; ++i) {
    words += "star ";
    one_word += "\xe6\xbc\xa2";
  }
  for (const auto& prompt : {words, one_word}) {
    auto command = generate_command(folder / "picture.png");
    *(std::find(command.begin(), command.end(), "--prompt") + 1) = prompt;
    const auto result = run_child(command);
    ASSERT_EQ(result.exit_code, 0) << result.err.substr(0, 1000);
    EXPECT_LT(result.err.size(), 2000u);
    expect_mentions(result.err, {"the CLIP encoder takes 77 tokens; cut off from the prompt: \"",
                                 prompt == words ? "star star\" and 48" : "\" and 1 more word."});
  }
}

TEST(Generate, DrawsASeedForAllRanksAndSaysWhich) {
  const TemporaryFolder folder;
  auto command = generate_command(folder / "drawn.png", {"--ulysses-degree", "2"});
  const auto seed = std::find(command.begin(), command.end(), "--seed");
  command.erase(seed, seed + 2);
  const auto drawn = run_child(command);
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  const auto parameters = Json::parse(Image::read_text(folder / "drawn.png").at("parameters"));
  const auto value = std::to_string(parameters["seed"].get<int64_t>());
  EXPECT_NE(drawn.err.find("seed " + value), std::string::npos) << drawn.err;
  command.insert(command.end(), {"--seed", value});
  std::replace(command.begin(), command.end(), (folder / "drawn.png").string(), (folder / "again.png").string());
  ASSERT_EQ(run_child(command).exit_code, 0);
  EXPECT_EQ(content_of(folder / "again.png"), content_of(folder / "drawn.png"));
}

TEST(Generate, TakesPromptsOfAnyForm) {
  const TemporaryFolder folder;
  for (const std::string prompt : {"", "[a, b]", "--height", "-x", "{}", "%%", "two\nlines"}) {
    auto command = generate_command(folder / "picture.png");
    *(std::find(command.begin(), command.end(), "--prompt") + 1) = prompt;
    const auto result = run_child(command);
    EXPECT_EQ(result.exit_code, 0) << "'" << prompt << "': " << result.err;
    EXPECT_EQ(Json::parse(Image::read_text(folder / "picture.png").at("parameters"))["prompt"], Json({prompt}));
  }
}

TEST(Generate, IsSilentWhenQuiet) {
  const TemporaryFolder folder;
  const auto result = generate(folder, "picture.png", {"--quiet"});
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, "");
}

TEST(Generate, SaysWhereThePictureWentAndCountsSteps) {
  const TemporaryFolder folder;
  const auto result = generate(folder, "picture.png");
  expect_mentions(result.err, {"step 2 of 2", "wrote " + (folder / "picture.png").string(), "seed 0"});
}

}  // namespace
}  // namespace pardiff::testing
