#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/io/image.h>
#include <pardiff/io/safetensors.h>

#include <nlohmann/json.hpp>

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
    std::vector<std::string> flags = {"--dump-tensors", folder / name, "--dtype", "float32"};
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
    EXPECT_GT(row["parameter_bytes"].get<int64_t>(), 1'000'000);
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
