// Pictures that are repeated from what they carry, flags from a file, help, completion and manual.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/io/image.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "support/failure.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json parameters_of(const fs::path& picture) { return Json::parse(Image::read_text(picture).at("parameters")); }

ChildResult repeat(const fs::path& from, const fs::path& output, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> arguments = {"generate", "--from", from, "--output", output};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return run_program(arguments);
}

std::vector<std::string> with_model(std::vector<std::string> command, const fs::path& model) {
  *(std::find(command.begin(), command.end(), "--model") + 1) = model.string();
  return command;
}

TEST(From, RepeatsOnePictureOfABatchByteForByte) {
  const TemporaryFolder folder;
  auto command =
      generate_command(folder / "batch.png",
                       {"--prompt", "a \"red\" circle\non white", "--num-images", "2", "--ring-degree", "2",
                        "--rotate-method", "allgather", "--guidance-scale", "2.7", "--threads", "1", "--comm", "gloo"});
  *(std::find(command.begin(), command.end(), "--dtype") + 1) = "bfloat16";
  const auto made = run_child(command);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto repeated = repeat(folder / "batch-2.png", folder / "again.png");
  ASSERT_EQ(repeated.exit_code, 0) << repeated.err;
  EXPECT_EQ(content_of(folder / "again.png"), content_of(folder / "batch-2.png"));
  expect_mentions(repeated.err, {"again.png is ", "batch-2.png, byte for byte", "ring 2"});
  EXPECT_EQ(folder.names(),
            (std::vector<std::string>{"again.png", "batch-0.png", "batch-1.png", "batch-2.png", "batch-3.png"}));
}

TEST(From, LetsFlagsReplaceWhatThePictureCarries) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_child(generate_command(folder / "ring.png", {"--ring-degree", "2", "--threads", "1"})).exit_code, 0);
  const auto other = repeat(folder / "ring.png", folder / "other.png", {"--ulysses-degree", "2", "--seed", "5"});
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(other.err.find("byte for byte"), std::string::npos) << other.err;
  const auto parameters = parameters_of(folder / "other.png");
  EXPECT_FALSE(parameters.contains("ring_degree"));
  EXPECT_EQ(parameters["ulysses_degree"], 2);
  EXPECT_EQ(parameters["seed"], 5);
  EXPECT_EQ(parameters["height"], 64);
}

TEST(From, TellsAnotherCheckpointFromOtherFilesOfTheSame) {
  const TemporaryFolder folder;
  const auto model = folder / "model";
  fs::copy(model_path("flux-shapes"), model, fs::copy_options::recursive);
  ASSERT_EQ(run_child(with_model(generate_command(folder / "a.png"), model)).exit_code, 0);

  ASSERT_EQ(run_program({"convert", model, folder / "sharded", "--max-shard-size", "2MB"}).exit_code, 0);
  fs::remove_all(model);
  fs::rename(folder / "sharded", model);
  const auto repeated = repeat(folder / "a.png", folder / "b.png");
  ASSERT_EQ(repeated.exit_code, 0) << repeated.err;
  EXPECT_EQ(content_of(folder / "b.png"), content_of(folder / "a.png"));

  const auto weights = Checkpoint::open(model / "vae", "diffusion_pytorch_model");
  std::vector<NamedTensor> tensors;
  for (const auto& name : weights.names()) {
    tensors.push_back({name, weights.tensor(name).clone()});
    if (name == "decoder.conv_out.bias") tensors.back().tensor.add_(0.25);
  }
  save_checkpoint(model / "vae", "diffusion_pytorch_model", tensors);
  const auto refused = repeat(folder / "a.png", folder / "c.png");
  EXPECT_EQ(refused.exit_code, 1);
  ASSERT_EQ(refused.errors().size(), 1u) << refused.err;
  expect_mentions(refused.errors()[0], {"another checkpoint: vae differs", "--model"});
  EXPECT_FALSE(fs::exists(folder / "c.png"));
  const auto asked_for = repeat(folder / "a.png", folder / "c.png", {"--model", model});
  EXPECT_EQ(asked_for.exit_code, 0) << asked_for.err;
  expect_mentions(asked_for.err, {"another checkpoint: vae differs"});
}

TEST(From, NamesAnotherProgramOrProcessor) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_child(generate_command(folder / "a.png")).exit_code, 0);
  const auto picture = Image::load(folder / "a.png");
  auto parameters = parameters_of(folder / "a.png");
  parameters["made_with"]["torch"] = "1.0";
  picture.save(folder / "older.png", {{"parameters", parameters.dump()}});
  const auto repeated = repeat(folder / "older.png", folder / "b.png");
  EXPECT_EQ(repeated.exit_code, 0) << repeated.err;
  expect_mentions(repeated.err, {"torch 1.0", "last bits", "b.png is not "});
}

TEST(From, RefusesAPictureThatCarriesNothing) {
  const TemporaryFolder folder;
  Image::from_tensor(at::zeros({3, 8, 8})).save(folder / "plain.png");
  const auto plain = repeat(folder / "plain.png", folder / "a.png");
  EXPECT_EQ(plain.exit_code, 2);
  expect_mentions(plain.err, {"plain.png", "cannot be repeated"});
  EXPECT_EQ(repeat(folder / "missing.png", folder / "a.png").exit_code, 1);
}

TEST(Formats, CarryWhatRepeatsThePicture) {
  const TemporaryFolder folder;
  for (const char* extension : {".jpg", ".webp"}) {
    const auto first = folder / text_of("a", extension), second = folder / text_of("b", extension);
    ASSERT_EQ(run_child(generate_command(first)).exit_code, 0);
    const auto repeated = repeat(first, second);
    ASSERT_EQ(repeated.exit_code, 0) << repeated.err;
    expect_mentions(repeated.err, {"byte for byte"});
    EXPECT_EQ(content_of(first), content_of(second));
  }
  ASSERT_EQ(repeat(folder / "a.jpg", folder / "c.png").exit_code, 0);
  EXPECT_EQ(Image::load(folder / "c.png").rgb, Image::load(folder / "a.webp").rgb);
}

TEST(ContactSheet, ShowsEveryPictureOfAPromptFile) {
  const TemporaryFolder folder;
  put(folder / "prompts", "a red circle on a white background\na blue star\na green square\n");
  auto command = generate_command(folder / "a.png",
                                  {"--prompt-file", folder / "prompts", "--contact-sheet", folder / "sheet.png"});
  const auto prompt = std::find(command.begin(), command.end(), "--prompt");
  command.erase(prompt, prompt + 2);
  const auto result = run_child(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto sheet = Image::load(folder / "sheet.png").to_tensor();
  ASSERT_EQ(sheet.sizes(), (at::IntArrayRef{3, 2 * 72 + 8, 2 * 72 + 8}));
  const auto third = Image::load(folder / "a-2.png").to_tensor();
  EXPECT_TRUE(sheet.narrow(1, 80, 64).narrow(2, 8, 64).equal(third));
}

TEST(Preview, ShowsThePictureToComeForOneGather) {
  const TemporaryFolder folder;
  const auto generate = [&](const std::string& name, const std::vector<std::string>& more) {
    auto command = generate_command(folder / (name + ".png"),
                                    {"--ring-degree", "2", "--threads", "1", "--report", folder / (name + ".json")});
    command.insert(command.end(), more.begin(), more.end());
    *(std::find(command.begin(), command.end(), "--steps") + 1) = "8";
    const auto result = run_child(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  };
  generate("plain", {});
  generate("shown", {"--preview", "3"});
  const auto shown = Image::load(folder / "shown.png");
  EXPECT_EQ(shown.rgb, Image::load(folder / "plain.png").rgb);
  const auto gathers = [&](const std::string& name) {
    const auto rank = Json::parse(content_of(folder / (name + ".json")))["ranks"][1];
    EXPECT_FALSE(rank["communication"].contains("all_gather"));
    return rank["communication_total"]["all_gather"]["calls"].get<int64_t>();
  };
  EXPECT_EQ(gathers("shown") - gathers("plain"), 2);  // after steps 3 and 6 of 8
  const auto preview = Image::load(folder / "shown-preview.png").to_tensor();
  ASSERT_EQ(preview.sizes(), (at::IntArrayRef{3, 64, 64}));
  // The noise that is left after step 6 of 8 would be much further off.
  EXPECT_LT((preview - shown.to_tensor()).abs().mean().item<float>(), 0.05F);
}

std::string config_text() {
  return Json({{"model", model_path("flux-shapes")},
               {"prompt", "a red circle"},
               {"height", 64},
               {"width", 64},
               {"steps", 2},
               {"max_sequence_length", 16},
               {"guidance-scale", 2.5},
               {"seed", 3},
               {"device", "cpu"},
               {"ulysses-degree", 2},
               {"ulysses-anything", true},
               {"ring-anything", false},
               {"quiet", true}})
      .dump();
}

TEST(Config, StandsForFlagsAndGivesWayToThem) {
  const TemporaryFolder folder;
  put(folder / "run.json", config_text());
  const auto result = run_program({"generate", "--config", folder / "run.json", "--output", folder / "a.png", "--seed",
                                   "4", "--prompt", "a blue star", "--prompt", "a star"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const auto parameters = parameters_of(folder / "a-1.png");
  EXPECT_EQ(parameters["prompt"], Json({"a blue star", "a star"}));
  EXPECT_EQ(parameters["seed"], 4);
  EXPECT_EQ(parameters["guidance_scale"], 2.5);
  EXPECT_EQ(parameters["ulysses_degree"], 2);
  EXPECT_EQ(parameters["ulysses_anything"], true);
  EXPECT_FALSE(parameters.contains("ring_anything"));
}

TEST(Config, NamesWhatItDoesNotUnderstand) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& text) {
    put(folder / "run.json", text);
    const auto result = run_program({"generate", "--config", folder / "run.json", "--output", folder / "a.png"});
    EXPECT_NE(result.exit_code, 0) << text;
    EXPECT_EQ(result.errors().size(), 1u) << result.err;
    EXPECT_EQ(folder.names(), std::vector<std::string>{"run.json"});
    return result.err;
  };
  expect_mentions(refusal(R"({"hieght": 64, "promt": "a", "colour": 1, "width": 64})"),
                  {"run.json", "hieght (did you mean height?)", "promt (did you mean prompt?)", "colour"});
  expect_mentions(refusal(R"({"height": "tall"})"), {"run.json", "height", "tall", "integer"});
  expect_mentions(refusal(R"({"prompt": 5})"), {"run.json", "prompt", "5"});
  expect_mentions(refusal(R"({"ulysses-anything": 1})"), {"run.json", "ulysses-anything", "true or false"});
  expect_mentions(refusal(R"({"height": 8})"), {"run.json", "--height", "'8'", "16"});
  expect_mentions(refusal(R"({"dtype": "int8"})"), {"run.json", "--dtype", "bfloat16"});
  expect_mentions(refusal(R"({"ring_degree": 2, "ring-degree": 2})"), {"run.json", "--ring-degree", "twice"});
  expect_mentions(refusal(R"({"config": "other.json"})"), {"config"});
  expect_mentions(refusal("{"), {"run.json"});
}

TEST(Flags, SuggestTheNearestName) {
  expect_mentions(run_program({"generate", "--hieght", "64"}).err, {"'--hieght'", "--height"});
  expect_mentions(run_program({"genrate"}).err, {"'genrate'", "generate"});
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The commands and their flags, as the help of the program names them.
const std::vector<std::string> kCommands = {"generate", "plan", "bench",      "inspect", "doctor",
                                            "convert",  "init", "completion", "man"};

std::vector<std::string> flags_of(const std::string& command) {
  std::vector<std::string> flags;
  for (const auto& line : lines_of(run_program({command, "--help"}).out)) {
    if (line.starts_with("  --")) flags.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return flags;
}

TEST(Help, FitsOnAScreenPerGroupWithAnExampleThatWorks) {
  const TemporaryFolder folder;
  fs::create_directory_symlink(model_path(""), folder / "models");
  const auto path = text_of("PATH=", fs::path(program()).parent_path().string(), ":/usr/bin:/bin");
  for (const auto& command : kCommands) {
    const auto help = run_program({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    int64_t lines_in_group = 0, groups = 0;
    std::vector<std::string> examples;
    bool in_example = false;
    for (const auto& line : lines_of(help.out)) {
      EXPECT_LE(line.size(), 100u) << line;
      if (line.empty()) groups += 1, lines_in_group = 0, in_example = false;
      EXPECT_LE(++lines_in_group, 24) << command << ": " << line;
      if (in_example && line.starts_with("    ")) examples.back() += line + "\n";
      if (line == "  Example:") examples.emplace_back(), in_example = true;
    }
    EXPECT_EQ(static_cast<int64_t>(examples.size()), groups) << help.out;
    for (const auto& example : examples) {
      const auto script = text_of("cd ", folder.path().string(), " && ", example);
      const auto result = run_child({"/bin/bash", "-c", script}, {path});
      EXPECT_EQ(result.exit_code, 0) << example << result.err;
    }
  }
  EXPECT_GE(flags_of("generate").size(), 40u);
}

std::string completed(const std::vector<std::string>& words, const std::string& folder) {
  std::string line = text_of("cd ", folder, " && source <(", program(), " completion bash) && COMP_WORDS=(");
  for (const auto& word : words) line += text_of("'", word, "' ");
  line += text_of(") && COMP_CWORD=", words.size() - 1, " && _pardiff && echo \"${COMPREPLY[*]}\"");
  const auto result = run_child({"/bin/bash", "-c", line});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out.substr(0, result.out.find('\n'));
}

TEST(Completion, OfBashKnowsEveryFlagAndChoice) {
  const TemporaryFolder folder;
  put(folder / "picture.png", "");
  const auto complete = [&](const std::vector<std::string>& words) { return completed(words, folder.path().string()); };
  for (const auto& command : kCommands) {
    const auto reply = complete({"pardiff", command, "--"});
    std::istringstream stream(reply);
    std::vector<std::string> offered;
    for (std::string word; stream >> word;) offered.push_back(word);
    EXPECT_EQ(offered, flags_of(command)) << command;
  }
  EXPECT_EQ(complete({"pardiff", "ge"}), "generate");
  EXPECT_EQ(complete({"pardiff", "generate", "--dtype", ""}), "auto float32 bfloat16 float16");
  EXPECT_EQ(complete({"pardiff", "generate", "--from", "pic"}), "picture.png");
  EXPECT_EQ(complete({"pardiff", "generate", "--height", ""}), "");
  EXPECT_EQ(complete({"pardiff", "completion", "z"}), "zsh");
}

TEST(Completion, OfOtherShellsAndTheManualNameEveryFlag) {
  const auto zsh = run_program({"completion", "zsh"}).out, fish = run_program({"completion", "fish"}).out;
  auto manual = run_program({"man"}).out;
  for (auto at = manual.find('\\'); at != std::string::npos; at = manual.find('\\', at)) {
    manual.erase(at, manual[at + 1] == 'f' ? 3 : 1);  // what remains is the text
  }
  for (const auto& command : kCommands) {
    expect_mentions(manual, {"\n.SH pardiff " + command});
    expect_mentions(fish, {" -a " + command + " "});
    const auto zsh_part = zsh.substr(zsh.find("    " + command + ") _arguments"));
    for (const auto& flag : flags_of(command)) {
      expect_mentions(zsh_part.substr(0, zsh_part.find(";;")), {flag + "["});
      expect_mentions(fish, {"__fish_seen_subcommand_from " + command + "' -l " + flag.substr(2) + " "});
      expect_mentions(manual.substr(manual.find("\n.SH pardiff " + command)), {"\n" + flag});
    }
  }
  EXPECT_EQ(run_program({"completion", "tcsh"}).exit_code, 2);
}

}  // namespace
}  // namespace pardiff::testing
