#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/io/image.h>

#include <algorithm>
#include <set>

#include "support/failure.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;

void expect_success(const std::vector<std::string>& arguments) {
  const auto result = run_program(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Inspect, ListsEveryPart) {
  const auto result = run_program({"inspect", model_path("flux-shapes")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.out, {"transformer", "FluxTransformer2DModel", "bfloat16", "text_encoder_2", "T5EncoderModel",
                               "vae", "AutoencoderKL", "parameters", "1 file"});
}

TEST(Inspect, NamesWhatIsMissingAndWhatIsStray) {
  const TemporaryFolder folder;
  const auto model = folder / "model";
  fs::copy(model_path("flux-shapes"), model, fs::copy_options::recursive);
  put(model / "transformer/old.safetensors", "");
  const auto weights = Checkpoint::open(model / "vae", "diffusion_pytorch_model");
  std::vector<NamedTensor> tensors;
  for (const auto& name : weights.names()) {
    if (name != "decoder.conv_in.bias") tensors.push_back({name, weights.tensor(name).clone()});
  }
  tensors.push_back({"decoder.extra", at::zeros({2})});
  tensors.push_back({"teacher.extra", at::zeros({2})});
  save_checkpoint(model / "vae", "diffusion_pytorch_model", tensors);
  fs::remove_all(model / "text_encoder");
  const auto result = run_program({"inspect", model.string()});
  EXPECT_EQ(result.exit_code, 1);
  expect_mentions(result.out, {"old.safetensors", "missing: decoder.conv_in.bias",
                               "stray: decoder.extra has no place in", "not used: teacher.extra", "missing folder"});
}

TEST(Inspect, FailsForWhatLoadingRefuses) {
  const TemporaryFolder folder;
  const auto model = folder / "model";
  fs::copy(model_path("flux-shapes"), model, fs::copy_options::recursive);
  const auto add_to_vae = [&](const char* name) {
    const auto weights = Checkpoint::open(model / "vae", "diffusion_pytorch_model");
    std::vector<NamedTensor> tensors = {{name, at::zeros({2})}};
    for (const auto& own : weights.names()) tensors.push_back({own, weights.tensor(own).clone()});
    save_checkpoint(model / "vae", "diffusion_pytorch_model", tensors);
  };
  const auto generate = [&] {
    auto command = generate_command(folder / "picture.png");
    *(std::find(command.begin(), command.end(), "--model") + 1) = model.string();
    return run_child(command);
  };
  add_to_vae("teacher.extra");
  EXPECT_EQ(run_program({"inspect", model.string()}).exit_code, 0);
  EXPECT_EQ(generate().exit_code, 0);
  add_to_vae("decoder.extra");
  EXPECT_EQ(run_program({"inspect", model.string()}).exit_code, 1);
  const auto refusal = generate();
  EXPECT_EQ(refusal.exit_code, 1);
  expect_mentions(refusal.err, {"'decoder.extra'"});
}

TEST(Inspect, FailsForClassesThatLoadingRefuses) {
  const std::pair<const char*, const char*> changes[] = {{"FlowMatchEulerDiscreteScheduler", "DDIMScheduler"},
                                                         {"FluxTransformer2DModel", "Flux2Transformer2DModel"}};
  for (const auto& [from, to] : changes) {
    const TemporaryFolder folder;
    fs::copy(model_path("flux-shapes"), folder / "model", fs::copy_options::recursive);
    auto index = content_of(folder / "model/model_index.json");
    index.replace(index.find(from), std::string(from).size(), to);
    put(folder / "model/model_index.json", index);
    const auto result = run_program({"inspect", (folder / "model").string()});
    EXPECT_EQ(result.exit_code, 1);
    expect_mentions(result.out, {to, "FluxPipeline takes"});
  }
}

// flux-shapes whose transformer has its weights in files of a variant, and in no others.
void make_variant(const fs::path& model) {
  fs::copy(model_path("flux-shapes"), model, fs::copy_options::recursive);
  fs::rename(model / "transformer/diffusion_pytorch_model.safetensors",
             model / "transformer/diffusion_pytorch_model.fp16.safetensors");
}

TEST(Variant, IsTakenPartByPart) {
  const TemporaryFolder folder;
  const auto model = (folder / "model").string();
  make_variant(model);
  auto command = generate_command(folder / "variant.png", {"--variant", "fp16"});
  *(std::find(command.begin(), command.end(), "--model") + 1) = model;
  const auto variant = run_child(command);
  ASSERT_EQ(variant.exit_code, 0) << variant.err;
  expect_mentions(variant.err, {"variant 'fp16' for vae, text_encoder, text_encoder_2"});
  ASSERT_EQ(run_child(generate_command(folder / "plain.png")).exit_code, 0);
  EXPECT_EQ(Image::load(folder / "variant.png").rgb, Image::load(folder / "plain.png").rgb);
  const auto inspected = run_program({"inspect", model, "--variant", "fp16"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.out;
  expect_mentions(inspected.out, {"no files of variant fp16"});
  expect_success({"convert", model, folder / "converted", "--variant", "fp16"});
  expect_success({"inspect", folder / "converted"});
}

TEST(Variant, IsRefusedIfNoPartHasIt) {
  const TemporaryFolder folder;
  const auto model = (folder / "model").string();
  make_variant(model);
  auto command = generate_command(folder / "picture.png", {"--variant", "int8"});
  *(std::find(command.begin(), command.end(), "--model") + 1) = model;
  for (const auto& result : {run_child(command), run_program({"inspect", model, "--variant", "int8"}),
                             run_program({"convert", model, folder / "converted", "--variant", "int8"})}) {
    EXPECT_EQ(result.exit_code, 1);
    ASSERT_EQ(result.errors().size(), 1u) << result.err;
    expect_mentions(result.errors()[0], {"no part", "variant 'int8'"});
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"model"});
}

TEST(Convert, KeepsEveryTensorAndFileWhenItOnlySplitsShards) {
  const TemporaryFolder folder;
  const auto output = folder / "out";
  expect_success({"convert", model_path("flux-shapes"), output, "--max-shard-size", "2MB"});
  const auto source = Checkpoint::open(model_path("flux-shapes") + "/transformer", "diffusion_pytorch_model");
  const auto copy = Checkpoint::open(output / "transformer", "diffusion_pytorch_model");
  EXPECT_GT(copy.files().size(), 2u);
  ASSERT_EQ(copy.names(), source.names());
  for (const auto& name : source.names()) EXPECT_TRUE(copy.tensor(name).equal(source.tensor(name))) << name;
  for (const char* file : {"model_index.json", "tokenizer/merges.txt", "tokenizer_2/spiece.model", "vae/config.json",
                           "scheduler/scheduler_config.json"}) {
    EXPECT_EQ(content_of(output / file), content_of(fs::path(model_path("flux-shapes")) / file)) << file;
  }
}

TEST(Convert, GivesTheSameFilesFromTensorParallelRanks) {
  const TemporaryFolder folder;
  for (const auto& dtype : {"auto", "float16"}) {
    const auto one = folder / text_of("one-", dtype), two = folder / text_of("two-", dtype);
    expect_success({"convert", model_path("flux-shapes"), one, "--max-shard-size", "2MB", "--dtype", dtype});
    expect_success(
        {"convert", model_path("flux-shapes"), two, "--max-shard-size", "2MB", "--dtype", dtype, "--tp-degree", "2"});
    for (const auto& [part, stem] : {std::pair{"transformer", "diffusion_pytorch_model"},
                                     {"text_encoder", "model"},
                                     {"text_encoder_2", "model"},
                                     {"vae", "diffusion_pytorch_model"}}) {
      const auto alone = Checkpoint::open(one / part, stem), together = Checkpoint::open(two / part, stem);
      EXPECT_EQ(together.files().size(), alone.files().size()) << part;
      EXPECT_TRUE(together.stray_files().empty()) << part;
      ASSERT_EQ(together.names(), alone.names()) << part;
      for (const auto& name : alone.names()) {
        EXPECT_EQ(together.info(name).dtype, alone.info(name).dtype) << name;
        EXPECT_TRUE(together.tensor(name).equal(alone.tensor(name))) << part << " " << name;
      }
      EXPECT_EQ(content_of(two / part / "config.json"), content_of(one / part / "config.json")) << part;
    }
  }
}

TEST(Convert, RefusesADegreeThatAPartCannotShare) {
  const TemporaryFolder folder;
  const auto result = run_program({"convert", model_path("flux-shapes"), folder / "out", "--tp-degree", "8"});
  EXPECT_EQ(result.exit_code, 1);
  expect_mentions(result.err, {"tp_degree 8", "heads of CLIPTextModel"});
  EXPECT_TRUE(folder.names().empty());
}

TEST(Convert, GivesTheSamePictureInAnotherDtype) {
  const TemporaryFolder folder;
  const auto output = folder / "out";
  expect_success({"convert", model_path("flux-shapes"), output, "--dtype", "float32"});
  EXPECT_EQ(Checkpoint::open(output / "vae", "diffusion_pytorch_model").info("decoder.conv_in.bias").dtype, at::kFloat);
  expect_mentions(content_of(output / "text_encoder_2/config.json"), {"\"dtype\": \"float32\""});
  ASSERT_EQ(run_child(generate_command(folder / "a.png")).exit_code, 0);
  auto command = generate_command(folder / "b.png");
  *(std::find(command.begin(), command.end(), "--model") + 1) = output.string();
  ASSERT_EQ(run_child(command).exit_code, 0);
  EXPECT_EQ(Image::load(folder / "a.png").rgb, Image::load(folder / "b.png").rgb);
}

TEST(Convert, RefusesAFolderThatHoldsFilesAndLeavesItAlone) {
  const TemporaryFolder folder;
  put(folder / "precious", "data");
  const auto result = run_program({"convert", model_path("flux-shapes"), folder.path()});
  EXPECT_EQ(result.exit_code, 1);
  expect_mentions(result.err, {"not empty"});
  EXPECT_EQ(folder.names(), std::vector<std::string>{"precious"});
}

TEST(Convert, RefusesAPartWithoutItsWeights) {
  const TemporaryFolder folder;
  fs::copy(model_path("flux-shapes"), folder / "model", fs::copy_options::recursive);
  const auto weights = folder / "model/vae/diffusion_pytorch_model.safetensors";
  fs::remove(weights);
  const auto convert = [&] { return run_program({"convert", folder / "model", folder / "out"}); };
  const auto without = convert();
  EXPECT_EQ(without.exit_code, 1);
  expect_mentions(without.err, {"model/vae has a config and no weights"});
  fs::create_symlink("../../blobs/0123", weights);  // as the Hugging Face cache has them
  const auto dangling = convert();
  EXPECT_EQ(dangling.exit_code, 1);
  expect_mentions(dangling.err, {"symbolic link to ../../blobs/0123", "does not exist"});
  EXPECT_EQ(folder.names(), std::vector<std::string>{"model"});
}

TEST(WritingCommands, RunOnceOnly) {
  const TemporaryFolder folder;
  const std::vector<std::string> one_of_two = {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"};
  const auto convert = run_program({"convert", model_path("flux-shapes"), folder / "out"}, one_of_two);
  EXPECT_EQ(convert.exit_code, 2);
  expect_mentions(convert.err, {"2 ranks", "--tp-degree is 1"});
  const auto init = run_program({"init", "bench", folder / "out"}, one_of_two);
  EXPECT_EQ(init.exit_code, 2);
  expect_mentions(init.err, {"2 ranks", "without a launcher"});
  EXPECT_TRUE(folder.names().empty());
}

TEST(Convert, RefusesAnIncompleteCheckpointAndLeavesNothing) {
  const TemporaryFolder folder;
  fs::copy(model_path("flux-shapes"), folder / "model", fs::copy_options::recursive);
  put(folder / "model/transformer/diffusion_pytorch_model.safetensors", "cut");
  EXPECT_EQ(run_program({"convert", folder / "model", folder / "out"}).exit_code, 1);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"model"});
  EXPECT_EQ(run_program({"convert", folder / "model", folder / "out", "--max-shard-size", "huge"}).exit_code, 2);
}

// Small enough to write in no time, with every part.
constexpr const char* kTinyConfig = R"({
  "transformer": {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
                  "joint_attention_dim": 32, "pooled_projection_dim": 24, "guidance_embeds": true, "axes_dims_rope": [4, 6, 6]},
  "text_encoder": {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2},
  "text_encoder_2": {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2, "feed_forward_proj": "gated-gelu"},
  "vae": {"block_out_channels": [8, 8], "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D"],
          "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"], "latent_channels": 16, "norm_num_groups": 2,
          "scaling_factor": 0.36, "shift_factor": 0.12, "use_quant_conv": false, "use_post_quant_conv": false},
  "scheduler": {"shift": 3.0, "use_dynamic_shifting": true}
})";

TEST(Init, WritesACheckpointThatInspectsAndDrawsSomething) {
  const TemporaryFolder folder;
  put(folder / "tiny.json", kTinyConfig);
  expect_success({"init", folder / "tiny.json", folder / "model", "--dtype", "float32"});
  expect_success({"inspect", folder / "model"});
  auto command = generate_command(folder / "picture.png");
  *(std::find(command.begin(), command.end(), "--model") + 1) = (folder / "model").string();
  const auto result = run_child(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto picture = Image::load(folder / "picture.png");
  const std::set<uint8_t> values(picture.rgb.begin(), picture.rgb.end());
  EXPECT_GT(values.size(), 16u) << "a picture of hardly any values";
}

TEST(Init, DependsOnTheSeedOnly) {
  const TemporaryFolder folder;
  put(folder / "tiny.json", kTinyConfig);
  for (const auto& [name, seed] : {std::pair{"a", "1"}, {"b", "1"}, {"c", "2"}}) {
    expect_success({"init", folder / "tiny.json", folder / name, "--seed", seed});
  }
  const auto weights = [&](const char* name) {
    return content_of(folder / name / "vae/diffusion_pytorch_model.safetensors");
  };
  EXPECT_EQ(weights("a"), weights("b"));
  EXPECT_NE(weights("a"), weights("c"));
}

TEST(Init, BenchHasTheAgreedSizes) {
  const TemporaryFolder folder;
  expect_success({"init", "bench", folder / "model"});
  const auto inspected = run_program({"inspect", folder / "model"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.out;
  const auto config = content_of(folder / "model/transformer/config.json");
  expect_mentions(config, {"\"num_layers\": 4", "\"num_single_layers\": 8", "\"num_attention_heads\": 12",
                           "\"guidance_embeds\": true"});
}

TEST(Init, RefusesWhatItDoesNotKnow) {
  const TemporaryFolder folder;
  const auto result = run_program({"init", "flux-pro", folder / "model"});
  EXPECT_EQ(result.exit_code, 2);
  expect_mentions(result.err, {"flux-pro", "flux-dev", "bench"});
  put(folder / "wrong.json", R"({"transformer": {"num_layers": "many"}})");
  EXPECT_EQ(run_program({"init", folder / "wrong.json", folder / "model"}).exit_code, 1);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"wrong.json"});
}

TEST(Doctor, NamesVersionsDevicesBackendsAndTransports) {
  const auto result = run_program({"doctor"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.out, {"pardiff", "libtorch", "cpu", "cuda", "native", "gloo", "nccl"});
}

TEST(Program, ShowsHelpAndVersion) {
  const auto help = run_program({"generate", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  expect_mentions(help.out, {"--ulysses-degree", "--max-sequence-length", "--dump-tensors"});
  expect_mentions(run_program({"--version"}).out, {"pardiff 0."});
}

}  // namespace
}  // namespace pardiff::testing
