// FLUX's transformer in one file, under the names of its first publication.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/io/image.h>

#include <algorithm>

#include "support/failure.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;

// Puts the transformer of flux-shapes together as it would have been published first.
class Original {
 public:
  explicit Original(const std::string& prefix)
      : prefix_(prefix),
        source_(Checkpoint::open(model_path("flux-shapes") + "/transformer", "diffusion_pytorch_model")) {
    for (const char* kind : {".weight", ".bias"}) add_outer(kind);
    for (int block = 0; has(text_of("transformer_blocks.", block, ".norm1.linear.bias")); ++block) {
      for (const char* kind : {".weight", ".bias"}) add_double(block, kind);
    }
    for (int block = 0; has(text_of("single_transformer_blocks.", block, ".norm.linear.bias")); ++block) {
      for (const char* kind : {".weight", ".bias"}) add_single(block, kind);
    }
  }

  const std::vector<NamedTensor>& tensors() const { return tensors_; }

 private:
  bool has(const std::string& name) const { return source_.contains(name); }
  at::Tensor of(const std::string& name) const { return source_.tensor(name).clone(); }

  // Parameters end to end, along their rows.
  void add(const std::string& name, const std::vector<std::string>& parameters) {
    std::vector<at::Tensor> parts;
    for (const auto& parameter : parameters) parts.push_back(of(parameter));
    tensors_.push_back({prefix_ + name, at::cat(parts, 0)});
  }

  void add_outer(const std::string& kind) {
    const std::string embed = "time_text_embed.";
    for (const auto& [theirs, ours] : {std::pair<std::string, std::string>{"img_in", "x_embedder"},
                                       {"txt_in", "context_embedder"},
                                       {"time_in.in_layer", embed + "timestep_embedder.linear_1"},
                                       {"time_in.out_layer", embed + "timestep_embedder.linear_2"},
                                       {"vector_in.in_layer", embed + "text_embedder.linear_1"},
                                       {"vector_in.out_layer", embed + "text_embedder.linear_2"},
                                       {"guidance_in.in_layer", embed + "guidance_embedder.linear_1"},
                                       {"guidance_in.out_layer", embed + "guidance_embedder.linear_2"},
                                       {"final_layer.linear", "proj_out"}}) {
      if (has(ours + kind)) add(theirs + kind, {ours + kind});
    }
    const auto halves = of("norm_out.linear" + kind).chunk(2, 0);  // ours: scale, shift
    tensors_.push_back({prefix_ + "final_layer.adaLN_modulation.1" + kind, at::cat({halves[1], halves[0]}, 0)});
  }

  void add_double(int number, const std::string& kind) {
    const auto theirs = text_of("double_blocks.", number, "."), ours = text_of("transformer_blocks.", number, ".");
    struct Stream {
      std::string name, norm, ff, out;
      std::vector<std::string> qkv, norms;
    };
    for (const auto& stream : {Stream{"img", "norm1", "ff", "to_out.0", {"to_q", "to_k", "to_v"}, {"norm_q", "norm_k"}},
                               Stream{"txt",
                                      "norm1_context",
                                      "ff_context",
                                      "to_add_out",
                                      {"add_q_proj", "add_k_proj", "add_v_proj"},
                                      {"norm_added_q", "norm_added_k"}}}) {
      const auto name = theirs + stream.name;
      add(name + "_mod.lin" + kind, {ours + stream.norm + ".linear" + kind});
      add(name + "_attn.qkv" + kind, {ours + "attn." + stream.qkv[0] + kind, ours + "attn." + stream.qkv[1] + kind,
                                      ours + "attn." + stream.qkv[2] + kind});
      add(name + "_attn.proj" + kind, {ours + "attn." + stream.out + kind});
      add(name + "_mlp.0" + kind, {ours + stream.ff + ".net.0.proj" + kind});
      add(name + "_mlp.2" + kind, {ours + stream.ff + ".net.2" + kind});
      if (kind != ".weight") continue;
      add(name + "_attn.norm.query_norm.scale", {ours + "attn." + stream.norms[0] + kind});
      add(name + "_attn.norm.key_norm.scale", {ours + "attn." + stream.norms[1] + kind});
    }
  }

  void add_single(int number, const std::string& kind) {
    const auto theirs = text_of("single_blocks.", number, "."),
               ours = text_of("single_transformer_blocks.", number, ".");
    add(theirs + "modulation.lin" + kind, {ours + "norm.linear" + kind});
    add(theirs + "linear1" + kind,
        {ours + "attn.to_q" + kind, ours + "attn.to_k" + kind, ours + "attn.to_v" + kind, ours + "proj_mlp" + kind});
    add(theirs + "linear2" + kind, {ours + "proj_out" + kind});
    if (kind != ".weight") return;
    add(theirs + "norm.query_norm.scale", {ours + "attn.norm_q" + kind});
    add(theirs + "norm.key_norm.scale", {ours + "attn.norm_k" + kind});
  }

  std::string prefix_;
  Checkpoint source_;
  std::vector<NamedTensor> tensors_;
};

class SingleFile : public ::testing::TestWithParam<const char*> {
 protected:
  SingleFile() { write_safetensors(file_, Original(GetParam()).tensors()); }

  TemporaryFolder folder_;
  fs::path file_ = folder_ / "flux1.safetensors";
};

TEST_P(SingleFile, GivesThePictureOfTheFolder) {
  for (const auto& [name, flags] : {std::pair<std::string, std::vector<std::string>>{"one", {}},
                                    {"tp", {"--tp-degree", "2"}},
                                    {"sharded", {"--ulysses-degree", "2", "--shard-weights-over", "ulysses"}}}) {
    auto both = flags;
    both.insert(both.end(), {"--threads", "1"});
    const auto from_folder = folder_ / (name + ".png"), from_file = folder_ / (name + "-file.png");
    ASSERT_EQ(run_child(generate_command(from_folder, both)).exit_code, 0);
    both.insert(both.end(), {"--transformer", file_.string()});
    const auto result = run_child(generate_command(from_file, both));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(Image::load(from_file).rgb, Image::load(from_folder).rgb) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Prefixes, SingleFile, ::testing::Values("", "model.diffusion_model."),
                         [](const auto& instance) { return *instance.param ? "WithPrefix" : "Plain"; });

TEST(SingleFileInspected, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  auto tensors = Original("").tensors();
  write_safetensors(folder / "flux1.safetensors", tensors);
  const auto sound = run_program({"inspect", folder / "flux1.safetensors"});
  EXPECT_EQ(sound.exit_code, 0) << sound.out << sound.err;
  expect_mentions(sound.out, {"FluxTransformer2DModel", "FLUX's first publication", "1 file"});

  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == "double_blocks.0.txt_attn.qkv.bias"; });
  tensors.push_back({"single_blocks.0.extra.weight", at::zeros({2})});
  tensors.push_back({"vae.extra", at::zeros({2})});
  write_safetensors(folder / "wrong.safetensors", tensors);
  const auto wrong = run_program({"inspect", folder / "wrong.safetensors"});
  EXPECT_EQ(wrong.exit_code, 1);
  expect_mentions(wrong.out, {"missing: transformer_blocks.0.attn.add_q_proj.bias", "not used: vae.extra",
                              "stray: single_transformer_blocks.0.extra.weight has no place"});
  const auto refused = run_child(generate_command(folder / "x.png", {"--transformer", folder / "wrong.safetensors"}));
  EXPECT_EQ(refused.exit_code, 1);
  expect_mentions(refused.err, {"wrong.safetensors", "add_q_proj.bias"});
  EXPECT_FALSE(fs::exists(folder / "x.png"));
}

TEST(SingleFileInspected, NeedsNoTransformerInTheFolder) {
  const TemporaryFolder folder;
  const auto model = folder / "model";
  fs::copy(model_path("flux-shapes"), model, fs::copy_options::recursive);
  fs::rename(model / "transformer/diffusion_pytorch_model.safetensors", folder / "own-names.safetensors");
  auto command = generate_command(folder / "x.png", {"--transformer", folder / "own-names.safetensors"});
  *(std::find(command.begin(), command.end(), "--model") + 1) = model.string();
  const auto result = run_child(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(run_program({"inspect", folder / "own-names.safetensors"}).out, {"names of diffusers"});
}

TEST(Inspect, TellsStaleShardsFromOtherStrayFiles) {
  const TemporaryFolder folder;
  const auto model = folder / "model";
  fs::copy(model_path("flux-shapes"), model, fs::copy_options::recursive);
  put(model / "vae/diffusion_pytorch_model-00001-of-00002.safetensors", "");
  put(model / "vae/other.safetensors", "");
  expect_mentions(run_program({"inspect", model}).out,
                  {"stale shard, not read: diffusion_pytorch_model-00001-of-00002.safetensors",
                   "stray file, not read: other.safetensors"});
}

}  // namespace
}  // namespace pardiff::testing
