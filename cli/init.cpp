#include <pardiff/comm/launch_env.h>
#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/io/new_folder.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/dtype.h"
#include "cli/flags.h"
#include "cli/model_presets.h"
#include "cli/parts.h"
#include "cli/progress.h"
#include "cli/random_weights.h"
#include "cli/removed_on_signal.h"
#include "cli/subcommand.h"
#include "cli/tokenizers.h"
#include "cli/verbosity.h"

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;

struct InitFlags {
  std::string preset, output;
  int64_t seed = 0;
  std::string dtype = "bfloat16";
  fs::path tokenizers;
  Verbosity verbosity;
};

constexpr const char* kModelIndex = R"({
  "_class_name": "FluxPipeline",
  "_diffusers_version": "0.42.1",
  "feature_extractor": [null, null],
  "image_encoder": [null, null],
  "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "CLIPTextModel"],
  "text_encoder_2": ["transformers", "T5EncoderModel"],
  "tokenizer": ["transformers", "CLIPTokenizer"],
  "tokenizer_2": ["transformers", "T5Tokenizer"],
  "transformer": ["diffusers", "FluxTransformer2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]
}
)";

// One part with weights.
struct WeightedPart {
  std::string name, stem, config;
  std::shared_ptr<Model> model;

  int64_t parameters() const {
    int64_t count = 0;
    for (const auto& parameter : model->parameters()) count += parameter.numel();
    return count;
  }
};

template <typename Holder, typename Config>
WeightedPart weighted_part(const char* name, const char* stem, const Config& config, at::ScalarType dtype) {
  return {name, stem, config.to_json(), Holder(config, nn::ParameterOptions{.dtype = dtype, .allocate = false}).ptr()};
}

std::vector<WeightedPart> weighted_parts(const FluxConfigs& configs, at::ScalarType dtype) {
  return {
      weighted_part<FluxTransformer2DModel>("transformer", "diffusion_pytorch_model", configs.transformer, dtype),
      weighted_part<ClipTextModel>("text_encoder", "model", configs.text_encoder, dtype),
      weighted_part<T5EncoderModel>("text_encoder_2", "model", configs.text_encoder_2, dtype),
      weighted_part<AutoencoderKL>("vae", "diffusion_pytorch_model", configs.vae, dtype),
  };
}

fs::path tokenizers_folder(const InitFlags& flags) {
  const auto folder = flags.tokenizers.empty() ? own_tokenizers() : flags.tokenizers;
  check<CheckpointError>(!folder.empty(),
                         "the tokenizers that come with pardiff are not there. Give a folder that has tokenizer and "
                         "tokenizer_2 with --tokenizers.");
  for (const char* name : {"tokenizer", "tokenizer_2"}) {
    std::error_code ignored;
    check<CheckpointError>(fs::is_directory(folder / name, ignored), folder.string(), " has no folder ", name,
                           ". Give a folder that has tokenizer and tokenizer_2 with --tokenizers.");
  }
  return folder;
}

// transformers takes the dtype from the config, not from the weights.
std::string with_dtype(const std::string& config, const std::string& dtype) {
  auto json = nlohmann::ordered_json::parse(config);
  if (json.contains("architectures")) json["dtype"] = dtype;
  return json.dump(2) + "\n";
}

void write_checkpoint(const InitFlags& flags, const FluxConfigs& configs, const std::vector<WeightedPart>& parts,
                      const NewFolder& output) {
  const auto tokenizers = tokenizers_folder(flags);
  for (const char* name : {"tokenizer", "tokenizer_2"}) {
    fs::copy(tokenizers / name, output.path() / name, fs::copy_options::recursive);
  }
  write_text_file(output.path() / "model_index.json", kModelIndex);
  fs::create_directory(output.path() / "scheduler");
  write_text_file(output.path() / "scheduler/scheduler_config.json", configs.scheduler.to_json());
  for (const auto& part : parts) {
    fs::create_directory(output.path() / part.name);
    write_text_file(output.path() / part.name / "config.json", with_dtype(part.config, flags.dtype));
    save_checkpoint(output.path() / part.name, part.stem, random_weights(*part.model, flags.seed));
    say(text_of("wrote ", part.name, " (", part.model->class_name(), ", ", count_text(part.parameters()),
                " parameters)"));
  }
}

int init(const InitFlags& flags) {
  flags.verbosity.apply();
  const auto env = LaunchEnv::from_environment();
  check<UsageError>(!env || env->world_size == 1, "init is one process's work, and there are ",
                    env ? env->world_size : 1, " ranks (started by: ", env ? env->launcher : "",
                    "). Start it without a launcher.");
  const auto configs = flux_configs(flags.preset);
  const auto dtype = dtype_named(flags.dtype);
  const auto parts = weighted_parts(configs, dtype);
  tokenizers_folder(flags);
  NewFolder output(flags.output);
  const RemovedOnSignal interruption(output.path());
  int64_t bytes = 0;
  for (const auto& part : parts) bytes += part.parameters() * static_cast<int64_t>(c10::elementSize(dtype));
  output.check_room(bytes);
  try {
    write_checkpoint(flags, configs, parts, output);
  } catch (const fs::filesystem_error& error) {
    fail<CheckpointError>("cannot write ", flags.output, ": ", error.what(), ".");
  }
  output.commit();
  say(text_of("wrote ", flags.output, " (", bytes_text(bytes), ", ", flags.dtype, ", seed ", flags.seed, ")"));
  return 0;
}

}  // namespace

Action declare_init(Flags& declared) {
  auto flags = std::make_shared<InitFlags>();
  declared.group("Flags", "pardiff init models/flux-shapes shapes-with-other-weights --seed 1")
      .argument(
          "PRESET|CONFIG", flags->preset,
          joined(preset_names()) + ", a folder in the diffusers layout, or a JSON file with an object for each part")
      .argument("OUT", flags->output, "The folder to write; it must not exist, or be empty")
      .integer("--seed", flags->seed, {0, std::numeric_limits<int64_t>::max()}, "Of the weights; default 0")
      .choice("--dtype", flags->dtype, {"float32", "bfloat16", "float16"}, "Default bfloat16")
      .path("--tokenizers", flags->tokenizers,
            "A folder with tokenizer and tokenizer_2; default: those of FLUX that come with pardiff");
  flags->verbosity.declare(declared);
  return [flags] { return init(*flags); };
}

}  // namespace pardiff::cli
