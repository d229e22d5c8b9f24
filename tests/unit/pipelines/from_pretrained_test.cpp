#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/io/safetensors.h>
#include <pardiff/pipelines/auto_model.h>
#include <pardiff/pipelines/diffusion_pipeline.h>

#include "support/failure.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;

World& world() {
  static World alone({.device = "cpu"});
  return alone;
}

// models/flux-shapes by symbolic links, so that a test can break one file of it.
class ModelCopy {
 public:
  ModelCopy() {
    const fs::path original = model_path("flux-shapes");
    for (const auto& entry : fs::recursive_directory_iterator(original)) {
      const auto target = folder_.path() / fs::relative(entry.path(), original);
      if (entry.is_directory()) {
        fs::create_directories(target);
      } else {
        fs::create_directories(target.parent_path());
        fs::create_symlink(fs::absolute(entry.path()), target);
      }
    }
  }
  std::string path() const { return folder_.path().string(); }
  void remove(const std::string& file) { fs::remove(folder_ / file); }
  void replace(const std::string& file, const std::string& content) {
    remove(file);
    put(folder_ / file, content);
  }

 private:
  TemporaryFolder folder_;
};

TEST(FromPretrained, NamesTheFileThatIsMissing) {
  for (const char* file :
       {"model_index.json", "scheduler/scheduler_config.json", "tokenizer/vocab.json", "tokenizer_2/spiece.model",
        "text_encoder/config.json", "text_encoder/model.safetensors", "text_encoder_2/model.safetensors",
        "transformer/config.json", "transformer/diffusion_pytorch_model.safetensors", "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors"}) {
    ModelCopy model;
    model.remove(file);
    const auto message = refusal<CheckpointError>([&] { DiffusionPipeline::from_pretrained(model.path(), world()); });
    expect_mentions(message, {fs::path(file).parent_path().string()});
  }
}

std::vector<NamedTensor> tensors_of(const std::string& file) {
  const auto opened = SafetensorsFile::open(model_path("flux-shapes/" + file));
  std::vector<NamedTensor> tensors;
  for (const auto& info : opened.tensors()) tensors.push_back({info.name, opened.tensor(info.name)});
  return tensors;
}

// Filling a part warns of a tensor that it does not use, so an error that comes alone came before any filling.
TEST(FromPretrained, FindsAMissingOrMisshapenTensorBeforeAnyPartIsFilled) {
  const std::string vae_file = "vae/diffusion_pytorch_model.safetensors",
                    transformer_file = "transformer/diffusion_pytorch_model.safetensors";
  auto vae = tensors_of(vae_file);
  vae.push_back({"stray", at::zeros({1})});
  auto without_first = tensors_of(transformer_file), misshapen = without_first;
  without_first.erase(without_first.begin());
  misshapen.back().tensor = at::zeros({1, 2, 3});
  for (const auto& transformer : {without_first, misshapen}) {
    ModelCopy model;
    for (const auto& file : {vae_file, transformer_file}) model.remove(file);
    write_safetensors(fs::path(model.path()) / vae_file, vae);
    write_safetensors(fs::path(model.path()) / transformer_file, transformer);
    ::testing::internal::CaptureStderr();
    const auto message = refusal<CheckpointError>([&] { FluxPipeline::from_pretrained(model.path(), world()); });
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    expect_mentions(message, {"transformer", "tensor '"});
  }
}

TEST(FromPretrained, RefusesOtherPipelinesAndModelsAndListsWhatIsHere) {
  ModelCopy model;
  model.replace("model_index.json", R"({"_class_name": "StableDiffusionPipeline"})");
  expect_mentions(refusal<ConfigError>([&] { DiffusionPipeline::from_pretrained(model.path(), world()); }),
                  {"StableDiffusionPipeline", "FluxPipeline"});
  expect_mentions(refusal<ConfigError>([&] { FluxPipeline::from_pretrained(model.path(), world()); }),
                  {"StableDiffusionPipeline"});
  model.replace("transformer/config.json", R"({"_class_name": "UNet2DConditionModel"})");
  const auto message =
      refusal<ConfigError>([&] { AutoModel::from_pretrained(model.path(), world(), {.subfolder = "transformer"}); });
  expect_mentions(
      message, {"UNet2DConditionModel", "AutoencoderKL", "CLIPTextModel", "FluxTransformer2DModel", "T5EncoderModel"});
}

// Of the index or of the part's own config; each would run as the class that is here.
TEST(FromPretrained, RefusesPartsOfOtherClasses) {
  const struct {
    std::string file, from, to, part;
  } cases[] = {
      {"model_index.json", "FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler", "scheduler"},
      {"model_index.json", "FluxTransformer2DModel", "Flux2Transformer2DModel", "transformer"},
      {"model_index.json", "CLIPTextModel", "SiglipTextModel", "text_encoder"},
      {"model_index.json", "T5EncoderModel", "UMT5EncoderModel", "text_encoder_2"},
      {"model_index.json", "CLIPTokenizer", "GPT2Tokenizer", "tokenizer"},
      {"model_index.json", "\"AutoencoderKL\"", "null", "vae"},
      {"scheduler/scheduler_config.json", "FlowMatchEuler", "FlowMatchHeun", "FlowMatchHeunDiscreteScheduler"},
      {"transformer/config.json", "FluxTransformer2DModel", "Flux2Transformer2DModel", "Flux2Transformer2DModel"},
      {"vae/config.json", "AutoencoderKL", "AutoencoderKLFlux2", "AutoencoderKLFlux2"},
      {"text_encoder_2/config.json", "T5EncoderModel", "UMT5EncoderModel", "UMT5EncoderModel"},
  };
  for (const auto& [file, from, to, part] : cases) {
    ModelCopy model;
    auto config = content_of(fs::path(model_path("flux-shapes")) / file);
    ASSERT_NE(config.find(from), std::string::npos) << file << from;
    config.replace(config.find(from), from.size(), to);
    model.replace(file, config);
    expect_mentions(refusal<Error>([&] { FluxPipeline::from_pretrained(model.path(), world()); }),
                    {fs::path(file).filename().string(), part});
  }
}

TEST(FromPretrained, RefusesPartsThatDoNotFit) {
  ModelCopy model;
  auto config = content_of(model_path("flux-shapes/vae/config.json"));
  const std::string key = "\"latent_channels\": 16";
  config.replace(config.find(key), key.size(), "\"latent_channels\": 8");
  model.replace("vae/config.json", config);
  expect_mentions(refusal<ConfigError>([&] { FluxPipeline::from_pretrained(model.path(), world()); }),
                  {"in_channels", "64", "32"});
}

TEST(FromPretrained, RefusesDegreesThatAreNotTheWorlds) {
  EXPECT_THROW(FluxPipeline::from_pretrained(model_path("flux-shapes"), world(),
                                             {.parallel_config = ContextParallelConfig{.ring_degree = 2}}),
               ConfigError);
}

TEST(FromPretrained, RefusesAnUnknownAttentionBackend) {
  EXPECT_THROW(
      FluxPipeline::from_pretrained(model_path("flux-shapes"), world(), {.attention_backend = "no_such_thing"}),
      ConfigError);
}

TEST(FromPretrained, TakesThePartsThatTheCallerBrings) {
  const std::string folder = model_path("flux-shapes");
  ModelCopy model;
  for (const char* file : {"transformer/diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors",
                           "text_encoder/model.safetensors", "text_encoder_2/model.safetensors", "tokenizer/vocab.json",
                           "tokenizer_2/spiece.model", "scheduler/scheduler_config.json"}) {
    model.remove(file);
  }
  const auto part = [](const char* subfolder) { return AutoModelOptions{.subfolder = subfolder, .dtype = at::kFloat}; };
  const FlowMatchEulerDiscreteScheduler scheduler(
      FlowMatchEulerConfig::from_file(ConfigFile::open(fs::path(folder) / "scheduler" / "scheduler_config.json")));
  auto assembled = FluxPipeline::from_pretrained(
      model.path(), world(),
      {.transformer = AutoModel::from_pretrained<FluxTransformer2DModel>(folder, world(), part("transformer")),
       .vae = AutoModel::from_pretrained<AutoencoderKL>(folder, world(), part("vae")),
       .text_encoder = AutoModel::from_pretrained<ClipTextModel>(folder, world(), part("text_encoder")),
       .text_encoder_2 = AutoModel::from_pretrained<T5EncoderModel>(folder, world(), part("text_encoder_2")),
       .tokenizer = ClipTokenizer::from_pretrained(fs::path(folder) / "tokenizer"),
       .tokenizer_2 = T5Tokenizer::from_pretrained(fs::path(folder) / "tokenizer_2"),
       .scheduler = scheduler});
  auto ordinary = FluxPipeline::from_pretrained(folder, world(), {.dtype = at::kFloat});
  const FluxPipelineInputs inputs{.prompt = "a red circle",
                                  .height = 32,
                                  .width = 32,
                                  .num_inference_steps = 1,
                                  .seed = 1,
                                  .max_sequence_length = 8};
  EXPECT_EQ(assembled(inputs).front().rgb, ordinary(inputs).front().rgb);
  EXPECT_EQ(assembled(inputs).front().rgb, ordinary(inputs).front().rgb);  // the caller's encoders were not freed
}

TEST(AutoModel, LoadsEveryPartAsItsClass) {
  const std::string folder = model_path("flux-shapes");
  for (const auto& [subfolder, name] : std::map<std::string, std::string>{{"transformer", "FluxTransformer2DModel"},
                                                                          {"vae", "AutoencoderKL"},
                                                                          {"text_encoder", "CLIPTextModel"},
                                                                          {"text_encoder_2", "T5EncoderModel"}}) {
    const auto model = AutoModel::from_pretrained(folder, world(), {.subfolder = subfolder});
    EXPECT_EQ(model->class_name(), name);
    for (const auto& parameter : model->parameters()) EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
  }
  EXPECT_THROW(AutoModel::from_pretrained<AutoencoderKL>(folder, world(), {.subfolder = "transformer"}), ConfigError);
}

}  // namespace
}  // namespace pardiff::testing
