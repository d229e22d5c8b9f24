#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/model_folder.h>
#include <pardiff/io/new_folder.h>
#include <pardiff/models/save.h>
#include <pardiff/pipelines/auto_model.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/dtype.h"
#include "cli/flags.h"
#include "cli/parts.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/removed_on_signal.h"
#include "cli/subcommand.h"
#include "cli/verbosity.h"

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;

struct ConvertFlags {
  std::string model, output, variant;
  std::string max_shard_size = "10GB", dtype = "auto";
  RankFlags ranks;  // nothing but tp_degree
  Verbosity verbosity;
};

bool is_weights_file(const fs::path& path) {
  const auto name = path.filename().string();
  return path.extension() == ".safetensors" || name.find(".safetensors.index.") != std::string::npos;
}

// transformers takes the dtype from here, not from the weights.
void write_config(const fs::path& from, const fs::path& to, const std::string& dtype) {
  std::ifstream file(from);
  auto config = nlohmann::ordered_json::parse(file);
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key)) config[key] = dtype;
  }
  write_text_file(to, config.dump(2) + "\n");
}

class Conversion {
 public:
  Conversion(const ConvertFlags& flags, const RankLayout& layout, World& world)
      : flags_(flags),
        parallel_(layout.parallel),
        world_(world),
        source_(resolve_model(flags.model)),
        shard_bytes_(parse_bytes("--max-shard-size", flags.max_shard_size)) {
    if (flags.dtype != "auto") dtype_ = dtype_named(flags.dtype);
  }

  void run() const {
    const auto parts = parts_of(source_);
    const int64_t bytes = bytes_needed(parts);
    std::optional<NewFolder> output;  // on rank 0
    std::optional<RemovedOnSignal> interruption;
    if (world_.rank() == 0) {
      output.emplace(flags_.output);
      interruption.emplace(output->path());
      output->check_room(bytes);
      copy_files(source_, output->path());
    }
    for (const auto& part : parts) {
      convert_part(part, output ? output->path() / part.name : fs::path());
    }
    if (!output) return;
    output->commit();
    say("wrote " + flags_.output);
  }

 private:
  // `folder` is empty but on rank 0.
  void convert_part(const Part& part, const fs::path& folder) const {
    if (!folder.empty() && !part.name.empty()) copy_files(part.folder, folder);
    const auto weights = part.weights(flags_.variant);
    if (!weights) return;
    const auto& [stem, variant] = *weights;
    if (is_shared(part)) {
      const auto model =
          AutoModel::from_pretrained(part.folder, world_, {.variant = variant, .parallel_config = *parallel_});
      save_parameters(*model, folder, stem, world_, {.max_shard_bytes = shard_bytes_, .dtype = dtype_});
    } else if (!folder.empty()) {
      save_checkpoint(folder, stem, converted(Checkpoint::open(part.folder, stem, variant)), shard_bytes_);
    }
    if (!folder.empty()) {
      say(text_of("converted ", part.name.empty() ? part.class_name : part.name,
                  variant == flags_.variant ? "" : text_of(" (its plain files: it has none of ", flags_.variant, ")")));
    }
  }

  // Whether every rank loads its slices of the part. What has no plan rank 0 copies tensor by tensor.
  bool is_shared(const Part& part) const {
    if (!parallel_) return false;
    const auto blank = blank_model(part.class_name, ConfigFile::open(part.folder / "config.json"));
    return blank.model && !blank.model->tensor_parallel_plan().empty();
  }

  // Every part is opened and compared with its config before the first byte is written.
  int64_t bytes_needed(const std::vector<Part>& parts) const {
    check_variant(parts, flags_.variant);
    int64_t bytes = 0;
    bool any = false;
    for (const auto& part : parts) {
      const auto weights = part.weights(flags_.variant);
      if (!weights) {
        std::error_code ignored;
        check<CheckpointError>(!fs::exists(part.folder / "config.json", ignored), part.folder.string(),
                               " has a config and no weights", of_variant(), ". See pardiff inspect ", flags_.model,
                               ".");
        continue;
      }
      any = true;
      const auto checkpoint = Checkpoint::open(part.folder, weights->stem, weights->variant);
      const auto blank = blank_model(part.class_name, ConfigFile::open(part.folder / "config.json"));
      const auto wrong = blank.model ? compare(blank, checkpoint).wrong : std::vector<std::string>();
      check<CheckpointError>(wrong.empty(), part.folder.string(), " is not complete: ", wrong.empty() ? "" : wrong[0],
                             ". See pardiff inspect ", flags_.model, ".");
      if (is_shared(part)) blank.model->check_parallelism(*parallel_, world_);
      for (const auto& tensor : converted(checkpoint)) bytes += tensor.bytes();
    }
    check<CheckpointError>(any, source_.string(), " holds no weights", of_variant(), ". There is nothing to convert.");
    return bytes;
  }

  std::string of_variant() const { return flags_.variant.empty() ? "" : text_of(" of variant ", flags_.variant); }

  std::vector<DeferredTensor> converted(const Checkpoint& checkpoint) const {
    std::vector<DeferredTensor> tensors;
    for (const auto& name : checkpoint.names()) {
      const auto& info = checkpoint.info(name);
      const auto dtype = dtype_ && at::isFloatingType(info.dtype) ? *dtype_ : info.dtype;
      tensors.push_back(
          {name, dtype, info.shape, [checkpoint, name, dtype] { return checkpoint.tensor(name).to(dtype); }});
    }
    return tensors;
  }

  // All but weights: configs, tokenizers, licences.
  void copy_files(const fs::path& from, const fs::path& to) const {
    if (!fs::is_directory(from)) return;
    fs::create_directories(to);
    for (const auto& entry : fs::directory_iterator(from)) {
      if (!fs::is_regular_file(entry) || is_weights_file(entry.path())) continue;
      const auto target = to / entry.path().filename();
      if (dtype_ && entry.path().filename() == "config.json") {
        write_config(entry.path(), target, flags_.dtype);
      } else {
        fs::copy_file(entry.path(), target);
      }
    }
  }

  const ConvertFlags& flags_;
  const std::optional<ParallelConfig>& parallel_;
  World& world_;
  fs::path source_;
  int64_t shard_bytes_;
  std::optional<at::ScalarType> dtype_;
};

int convert(const ConvertFlags& flags) {
  flags.verbosity.apply();
  const auto env = LaunchEnv::from_environment();
  check<UsageError>(!env || env->world_size == flags.ranks.tp_degree.value_or(1), "there are ",
                    env ? env->world_size : 1, " ranks, and --tp-degree is ", flags.ranks.tp_degree.value_or(1),
                    ". Give the number of ranks with --tp-degree, or convert without a launcher.");
  const auto layout = choose_layout(flags.ranks, env);
  if (!env) resolve_model(flags.model);  // once here, before anything is started
  if (layout.to_start > 0) return launch_ranks(layout.to_start, own_command_line());
  return run(
      [&](World& world) {
        try {
          Conversion(flags, layout, world).run();
        } catch (const fs::filesystem_error& error) {
          fail<CheckpointError>("cannot copy ", error.path1().string(), ": ", error.code().message(), ".");
        }
      },
      {.device = "cpu"});
}

}  // namespace

Action declare_convert(Flags& declared) {
  auto flags = std::make_shared<ConvertFlags>();
  declared.group("Flags", "pardiff convert models/flux-shapes flux-shapes-fp32 --dtype float32 --max-shard-size 4MB")
      .argument("DIR", flags->model, "A checkpoint's folder, or a repository id in the local Hugging Face cache")
      .argument("OUT", flags->output, "The folder to write; it must not exist, or be empty")
      .text("--max-shard-size", flags->max_shard_size, "Largest file, such as 500MB; default 10GB")
      .choice("--dtype", flags->dtype, {"auto", "float32", "bfloat16", "float16"}, "Default auto: as the files have it")
      .text("--variant", flags->variant, "Read the files of this variant, such as fp16")
      .integer("--tp-degree", flags->ranks.tp_degree, {1, 128},
               "Ranks that load a slice of every layer each and put them together to save; default 1");
  flags->verbosity.declare(declared);
  return [flags] { return convert(*flags); };
}

}  // namespace pardiff::cli
