#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pardiff/io/safetensors.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "support/failure.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;

struct BadInput {
  std::string name;
  std::vector<std::string> flags;  // appended to a command that works
  int exit_code;
  std::vector<std::string> mentions;      // of the message
  std::vector<std::string> without = {};  // flags taken out of that command, with their values
};

std::ostream& operator<<(std::ostream& stream, const BadInput& input) { return stream << input.name; }

std::vector<std::string> command_for(const BadInput& input, const std::string& output) {
  auto command = generate_command(output);
  auto taken_out = input.without;
  for (const auto& flag : input.flags) {
    if (flag.starts_with("--") && flag != "--prompt") taken_out.push_back(flag);
  }
  for (const auto& flag : taken_out) {
    const auto found = std::find(command.begin(), command.end(), flag);
    if (found != command.end()) command.erase(found, found + 2);
  }
  command.insert(command.end(), input.flags.begin(), input.flags.end());
  return command;
}

// One message, nothing written, no process left.
void expect_refusal(const std::vector<std::string>& command, int exit_code, const std::vector<std::string>& mentions,
                    const TemporaryFolder& folder, const std::vector<std::string>& files_before = {}) {
  ChildProcess child(command);
  const auto result = child.wait();
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  expect_mentions(result.errors()[0], mentions);
  EXPECT_EQ(result.errors()[0].back(), '.') << "a message ends with what to do";
  EXPECT_EQ(folder.names(), files_before);
  EXPECT_TRUE(child.group_is_gone());
}

class BadFlag : public ::testing::TestWithParam<BadInput> {};

TEST_P(BadFlag, GetsOneLineAndLeavesNothing) {
  const TemporaryFolder folder;
  expect_refusal(command_for(GetParam(), folder / "picture.png"), GetParam().exit_code, GetParam().mentions, folder);
}

const std::vector<BadInput> kBadFlags = {
    {"HeightIsNoNumber", {"--height", "abc"}, 2, {"--height", "'abc'", "16"}},
    {"HeightIsNegative", {"--height", "-64"}, 2, {"--height", "'-64'"}},
    {"HeightIsZero", {"--height", "0"}, 2, {"--height", "'0'"}},
    {"WidthIsAbsurd", {"--width", "1000000"}, 2, {"--width", "1000000", "16384"}},
    {"WidthOverflows", {"--width", "99999999999999999999"}, 2, {"--width", "99999999999999999999"}},
    {"WidthIsFractional", {"--width", "64.5"}, 2, {"--width", "64.5"}},
    {"HeightIsEmpty", {"--height", ""}, 2, {"--height"}},
    {"StepsIsZero", {"--steps", "0"}, 2, {"--steps", "'0'"}},
    {"StepsIsHexadecimal", {"--steps", "0x10"}, 2, {"--steps", "0x10"}},
    {"SeedIsNegative", {"--seed", "-1"}, 2, {"--seed", "'-1'"}},
    {"SeedOverflows", {"--seed", "18446744073709551616"}, 2, {"--seed"}},
    {"GuidanceIsNan", {"--guidance-scale", "nan"}, 2, {"--guidance-scale", "nan"}},
    {"GuidanceIsInfinite", {"--guidance-scale", "inf"}, 2, {"--guidance-scale", "inf"}},
    {"GuidanceOverflows", {"--guidance-scale", "1e999"}, 2, {"--guidance-scale", "1e999"}},
    {"GuidanceIsNegative", {"--guidance-scale", "-1"}, 2, {"--guidance-scale"}},
    {"TextIsTooLong", {"--max-sequence-length", "513"}, 2, {"--max-sequence-length", "513", "512"}},
    {"ImagesIsAbsurd", {"--num-images", "1000000000"}, 2, {"--num-images"}},
    {"DegreeIsZero", {"--ring-degree", "0"}, 2, {"--ring-degree", "'0'"}},
    {"DegreeIsNoNumber", {"--ulysses-degree", "two"}, 2, {"--ulysses-degree", "two"}},
    {"DegreesAreAbsurd", {"--ulysses-degree", "4000", "--ring-degree", "4000"}, 2, {"16000000"}},
    {"ThreadsIsZero", {"--threads", "0"}, 2, {"--threads"}},
    {"RanksWithoutDegrees",
     {"--nproc-per-node", "4"},
     2,
     {"4 ranks", "--ring-degree 2 --ulysses-degree 2", "--ulysses-degree 4"}},
    {"DegreesDoNotMultiply",
     {"--nproc-per-node", "4", "--ring-degree", "3"},
     2,
     {"multiply to 3", "4 ranks", "--ring-degree 4"}},
    {"FewerPicturesThanGroups", {"--dp-degree", "2"}, 1, {"dp_degree is 2", "1 picture", "--ulysses-degree"}},
    {"PassesWithoutTrueGuidance",
     {"--cfg-degree", "2", "--negative-prompt", "a square"},
     1,
     {"cfg_degree is 2", "--true-cfg-scale"}},
    {"UnknownAxis",
     {"--ulysses-degree", "2", "--shard-weights-over", "ulysses,rings"},
     2,
     {"shard_weights_over", "'rings'", "dp, fsdp, cfg, ring, ulysses"}},
    {"ThreePasses", {"--cfg-degree", "3"}, 2, {"--cfg-degree", "'3'"}},
    {"AnythingWithoutDegree", {"--ulysses-anything"}, 2, {"ulysses_anything"}},
    {"ValueIsMissing", {"--steps"}, 2, {"--steps needs a value"}},
    {"TwoOutputsOfOneName", {"--report", "/tmp/q.json", "--trace", "/tmp/./q.json"}, 2, {"two of the files", "q.json"}},
    {"UnknownFlag", {"--colour", "red"}, 2, {"--colour", "--help"}},
    {"UnknownRotation", {"--rotate-method", "ring"}, 2, {"--rotate-method", "alltoall"}},
    {"UnknownDtype", {"--dtype", "int8"}, 2, {"--dtype", "int8", "bfloat16"}},
    {"UnknownDevice", {"--device", "tpu"}, 2, {"--device", "tpu"}},
    {"UnknownBackend", {"--attention-backend", "flash"}, 1, {"flash", "nearest"}},
    {"TransportIsNotTheDevices", {"--comm", "nccl"}, 2, {"--comm", "nccl", "cpu", "gloo"}},
    {"GivenTwice", {"--steps", "2", "--steps", "3"}, 2, {"--steps", "2 times"}},
    {"QuietAndVerbose", {"--quiet", "--verbose"}, 2, {"--quiet"}},
    {"NoModel", {}, 2, {"--model"}, {"--model"}},
    {"NoPrompt", {}, 2, {"--prompt"}, {"--prompt"}},
    {"NoOutput", {}, 2, {"--output"}, {"--output"}},
    {"OutputIsNoPicture", {"--output", "/tmp/picture.gif"}, 2, {"--output", ".png", ".jpg", ".webp"}},
    {"OutputsFolderIsMissing", {"--output", "/nowhere/picture.png"}, 1, {"/nowhere"}},
    {"OutputsNameIsTooLong", {"--output", std::string(252, 'n') + ".png"}, 1, {"File name too long"}},
    {"OutputIsADeviceThatIsMissing", {"--output", "/dev/nothing.png"}, 1, {"/dev/nothing.png", "No such file"}},
    {"ReportsFolderIsMissing", {"--report", "/nowhere/report.json"}, 1, {"/nowhere"}},
    {"PromptIsNoUtf8", {"--prompt", "caf\xe9"}, 2, {"UTF-8"}, {"--prompt"}},
    {"NegativePromptIsNoUtf8", {"--negative-prompt", "caf\xe9"}, 2, {"negative_prompt", "UTF-8", "0xe9"}},
    {"TwoSecondPrompts", {"--prompt-2", "a", "--prompt-2", "b"}, 2, {"2 of prompt_2", "1 prompt"}},
    {"PromptFileIsADevice",
     {"--prompt-file", "/dev/null", "--ring-degree", "2"},
     2,
     {"/dev/null", "2 ranks", "ordinary file"},
     {"--prompt"}},
    {"PromptFileIsMissing", {"--prompt-file", "/nowhere/prompts"}, 1, {"/nowhere/prompts"}, {"--prompt"}},
    {"ModelIsMissing", {"--model", "/nowhere/model"}, 1, {"/nowhere/model"}},
    {"ModelIsNotCached", {"--model", "nobody/nothing"}, 1, {"nobody/nothing"}},
    {"ModelIsNoCheckpoint", {"--model", "/usr"}, 1, {"/usr", "model_index.json"}},
    {"LengthDoesNotDivide", {"--width", "48", "--height", "48", "--ring-degree", "2"}, 1, {"9", "ring_anything"}},
    {"HeadsDoNotDivide",
     {"--ulysses-degree", "3", "--width", "96", "--max-sequence-length", "18"},
     1,
     {"4 attention heads", "ulysses_anything"}},
    {"TensorDegreeDoesNotDivideHeads",
     {"--tp-degree", "3"},
     1,
     {"tp_degree 3", "4 attention heads of FluxTransformer2DModel"}},
};

INSTANTIATE_TEST_SUITE_P(Flags, BadFlag, ::testing::ValuesIn(kBadFlags),
                         [](const auto& instance) { return instance.param.name; });

TEST(BadInput, ComesWithABacktraceUnderDebugOnly) {
  const TemporaryFolder folder;
  auto command = generate_command(folder / "picture.png", {"--attention-backend", "flash"});
  EXPECT_EQ(run_child(command).err.find("frame #"), std::string::npos);
  command.push_back("--debug");
  const auto result = run_child(command);
  EXPECT_EQ(result.errors().size(), 1u) << result.err;
  expect_mentions(result.err, {"\nframe #0: ", "\nframe #1: "});
}

TEST(BadInput, ProgramWithoutSubcommandListsThem) {
  const auto result = run_program({});
  EXPECT_EQ(result.exit_code, 2);
  expect_mentions(result.err, {"generate", "doctor"});
}

TEST(BadInput, UnknownSubcommandIsRefused) {
  const auto result = run_program({"paint"});
  EXPECT_EQ(result.exit_code, 2);
  expect_mentions(result.err, {"paint"});
}

TEST(BadInput, APromptFileWithANulIsRefused) {
  const TemporaryFolder folder;
  put(folder / "prompts", std::string("a red circle\na\0b\n", 17));
  const BadInput input{"", {"--prompt-file", folder / "prompts"}, 2, {"NUL", "line 2"}, {"--prompt"}};
  expect_refusal(command_for(input, folder / "picture.png"), 2, input.mentions, folder, {"prompts"});
}

// Whichever rank comes first speaks, so all must say the same.
TEST(BadInput, TheRefusalOfRanksBesideALauncherNamesNoRank) {
  const TemporaryFolder folder;
  const auto said_by = [&](const std::string& rank) {
    const auto result =
        run_child(generate_command(folder / "picture.png", {"--nproc-per-node", "2", "--ring-degree", "2"}),
                  {"RANK=" + rank, "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"});
    EXPECT_EQ(result.exit_code, 2);
    return result.errors();
  };
  EXPECT_EQ(said_by("0"), said_by("1"));
}

// A server that listens, and never says a word.
class SilentServer {
 public:
  SilentServer() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_, any, size) | ::listen(socket_, 8) | ::getsockname(socket_, any, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentServer() { ::close(socket_); }
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;
  std::string port() const { return std::to_string(port_); }

 private:
  int socket_;
  int port_ = 0;
};

TEST(BadInput, ARendezvousThatIsNoneIsNamedOnceWithinTheTimeout) {
  const TemporaryFolder folder;
  const SilentServer silent;
  for (const auto& port : {silent.port(), std::string("1")}) {
    const auto result = run_child(generate_command(folder / "picture.png", {"--ulysses-degree", "2", "--timeout", "2"}),
                                  {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    expect_mentions(result.err, {"127.0.0.1:" + port, "MASTER_PORT"});
  }
}

TEST(BadInput, OnlyAPathMayBeNoUtf8) {
  const TemporaryFolder folder;
  const auto model = folder / "mod\xe9l";
  fs::create_directory_symlink(model_path("flux-shapes"), model);
  const BadInput input{"", {"--model", model.string(), "--report", folder / "r\xe9port.json"}, 0, {}};
  const auto result = run_child(command_for(input, folder / "pict\xe9re.png"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(folder.names().size(), 3u);
}

TEST(BadInput, RanksBesideALauncherAreRefused) {
  const TemporaryFolder folder;
  const auto result =
      run_child(generate_command(folder / "picture.png", {"--nproc-per-node", "2", "--ring-degree", "2"}),
                {"RANK=0", "WORLD_SIZE=1"});
  EXPECT_EQ(result.exit_code, 2);
  expect_mentions(result.err, {"--nproc-per-node"});
}

// A copy of flux-shapes in which one thing is damaged; what is whole is linked.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  DamagedCheckpoint() {
    const fs::path source = model_path("flux-shapes");
    for (const auto& entry : fs::recursive_directory_iterator(source)) {
      const auto target = folder_.path() / "model" / fs::relative(entry.path(), source);
      if (entry.is_directory()) {
        fs::create_directories(target);
      } else {
        fs::create_directories(target.parent_path());
        fs::create_symlink(entry.path(), target);
      }
    }
  }

  fs::path file(const std::string& name) const { return folder_.path() / "model" / name; }

  // The link becomes a file of its own.
  void replace(const std::string& name, const std::string& content) const {
    fs::remove(file(name));
    put(file(name), content);
  }

  void expect_refused(const std::vector<std::string>& mentions, const std::string& degree = "--ulysses-degree") const {
    const BadInput input{"", {"--model", (folder_.path() / "model").string(), degree, "2"}, 1, mentions};
    expect_refusal(command_for(input, folder_ / "picture.png"), 1, mentions, folder_, {"model"});
  }

  TemporaryFolder folder_;
};

constexpr const char* kWeights = "transformer/diffusion_pytorch_model.safetensors";

TEST_F(DamagedCheckpoint, AMissingFileIsNamed) {
  fs::remove(file(kWeights));
  expect_refused({"transformer", "diffusion_pytorch_model"});
}

TEST_F(DamagedCheckpoint, AMissingConfigIsNamed) {
  fs::remove(file("vae/config.json"));
  expect_refused({"vae/config.json"});
}

TEST_F(DamagedCheckpoint, AMissingTokenizerIsNamed) {
  fs::remove(file("tokenizer/merges.txt"));
  expect_refused({"merges.txt"});
}

TEST_F(DamagedCheckpoint, ACutFileIsNamed) {
  replace(kWeights, content_of(file(kWeights)).substr(0, 100'000));
  expect_refused({"diffusion_pytorch_model.safetensors"});
}

TEST_F(DamagedCheckpoint, AForeignFileIsNamed) {
  replace(kWeights, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  expect_refused({"diffusion_pytorch_model.safetensors", "git-lfs"});
}

TEST_F(DamagedCheckpoint, ABrokenConfigIsNamed) {
  replace("transformer/config.json", "{\"num_layers\": ");
  expect_refused({"transformer/config.json"});
}

// The weights with one tensor changed or, where it is undefined, left out.
std::vector<NamedTensor> weights_with(const fs::path& path, const std::string& name, const at::Tensor& tensor) {
  const auto file = SafetensorsFile::open(path);
  std::vector<NamedTensor> tensors;
  for (const auto& info : file.tensors()) {
    if (info.name != name) tensors.push_back({info.name, file.tensor(info.name)});
  }
  if (tensor.defined()) tensors.push_back({name, tensor});
  return tensors;
}

TEST_F(DamagedCheckpoint, AMissingTensorIsNamed) {
  const auto tensors = weights_with(file(kWeights), "proj_out.weight", {});
  fs::remove(file(kWeights));
  write_safetensors(file(kWeights), tensors);
  expect_refused({"proj_out.weight"});
}

TEST_F(DamagedCheckpoint, AMissingTensorThatRanksWouldShareIsNamed) {
  const auto tensors = weights_with(file(kWeights), "transformer_blocks.0.attn.to_q.weight", {});
  fs::remove(file(kWeights));
  write_safetensors(file(kWeights), tensors);
  expect_refused({"transformer_blocks.0.attn.to_q.weight"}, "--tp-degree");
}

TEST_F(DamagedCheckpoint, AMisshapenTensorIsNamed) {
  const auto tensors = weights_with(file(kWeights), "proj_out.weight", at::zeros({3, 5}));
  fs::remove(file(kWeights));
  write_safetensors(file(kWeights), tensors);
  expect_refused({"proj_out.weight", "[3, 5]"});
}

}  // namespace
}  // namespace pardiff::testing
