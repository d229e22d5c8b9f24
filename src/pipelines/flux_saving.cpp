#include "pipelines/flux_saving.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/core/dtype_name.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/new_folder.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pipelines/part_loading.h"

namespace pardiff::flux {
namespace {

namespace fs = std::filesystem;

// What rank 0 cannot do alone fails everywhere.
void on_rank_0(World& world, const std::function<void()>& work) {
  std::string error;
  if (world.rank() == 0) {
    try {
      work();
    } catch (const CommError&) {
      throw;  // nobody is left to be told
    } catch (const fs::filesystem_error& reason) {
      error = text_of("cannot copy ", reason.path1().string(), ": ", reason.code().message(), ".");
    } catch (const std::exception& reason) {
      error = reason.what();
    }
  }
  error = world.text_from_rank_0(error);
  check<CheckpointError>(error.empty(), error);
}

void copy_files(const fs::path& from, const fs::path& to) {
  fs::create_directory(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    if (fs::is_regular_file(entry)) fs::copy_file(entry.path(), to / entry.path().filename());
  }
}

// transformers takes the dtype from here, not from the weights.
void copy_config(const fs::path& from, const fs::path& to, std::optional<at::ScalarType> dtype) {
  std::ifstream file(from);
  auto config = nlohmann::ordered_json::parse(file);
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (dtype && config.contains(key)) config[key] = dtype_name(*dtype);
  }
  write_text_file(to, config.dump(2) + "\n");
}

// A checkpoint may have older spellings of them.
std::map<std::string, at::Tensor> parameters_by_all_names(const AutoencoderKL& model) {
  const auto other_names = model->load_options().other_names;
  std::map<std::string, at::Tensor> parameters;
  for (const auto& parameter : model->named_parameters()) {
    parameters.emplace(parameter.key(), parameter.value());
    for (const auto& name : other_names(parameter.key())) parameters.emplace(name, parameter.value());
  }
  return parameters;
}

class Saving {
 public:
  Saving(const SavedPipeline& pipeline, World& world, const SaveOptions& options)
      : pipeline_(pipeline), world_(world), options_(options) {}

  void run(const fs::path& target) {
    std::optional<NewFolder> output;  // on rank 0
    on_rank_0(world_, [&] {
      output.emplace(target);
      folder_ = output->path();
      copy_small_parts();
    });
    const auto& given = pipeline_.loaded_with;
    pardiff::save_pretrained(*pipeline_.transformer.ptr(), folder_ / "transformer", world_, options_);
    save_or_copy(given.text_encoder, "text_encoder", "model");
    save_or_copy(given.text_encoder_2, "text_encoder_2", "model");
    save_vae();
    on_rank_0(world_, [&] { output->commit(); });
  }

 private:
  void copy_small_parts() const {
    const auto& given = pipeline_.loaded_with;
    copy_files(given.tokenizer ? given.tokenizer->folder() : pipeline_.source / "tokenizer", folder_ / "tokenizer");
    copy_files(given.tokenizer_2 ? given.tokenizer_2->folder() : pipeline_.source / "tokenizer_2",
               folder_ / "tokenizer_2");
    fs::create_directory(folder_ / "scheduler");
    write_text_file(folder_ / "scheduler/scheduler_config.json", pipeline_.scheduler.config().to_json());
    fs::copy_file(pipeline_.source / "model_index.json", folder_ / "model_index.json");
  }

  template <typename Holder>
  void save_or_copy(const Holder& brought, const char* name, const char* stem) const {
    if (brought) return pardiff::save_pretrained(*brought.ptr(), folder_ / name, world_, options_);
    on_rank_0(world_, [&] { copy_part(name, stem, AutoencoderKL(nullptr)); });
  }

  // The decoder may have been changed; the encoder was never read.
  void save_vae() const {
    const auto& brought = pipeline_.loaded_with.vae;
    if (brought) return pardiff::save_pretrained(*brought.ptr(), folder_ / "vae", world_, options_);
    on_rank_0(world_, [&] { copy_part("vae", "diffusion_pytorch_model", pipeline_.vae); });
  }

  // Tensors that are parameters of `changed` are taken from it.
  void copy_part(const char* name, const char* stem, const AutoencoderKL& changed) const {
    const auto from = pipeline_.source / name;
    const auto files = open_pipeline_part(from, stem, pipeline_.loaded_with.variant);
    const auto held = changed ? parameters_by_all_names(changed) : std::map<std::string, at::Tensor>();
    std::vector<DeferredTensor> tensors;
    for (const auto& tensor : files.checkpoint.names()) {
      const auto& info = files.checkpoint.info(tensor);
      const auto dtype = dtype_of(info.dtype);
      tensors.push_back({tensor, dtype, info.shape, [&files, &held, tensor, dtype] {
                           const auto found = held.find(tensor);
                           const auto value = found == held.end() ? files.checkpoint.tensor(tensor) : found->second;
                           return value.to(at::kCPU, dtype);
                         }});
    }
    save_checkpoint(folder_ / name, stem, tensors, options_.max_shard_bytes, options_.variant);
    copy_config(from / "config.json", folder_ / name / "config.json", dtype());
  }

  // Unset: that of the files.
  std::optional<at::ScalarType> dtype() const { return options_.dtype ? options_.dtype : pipeline_.loaded_with.dtype; }
  at::ScalarType dtype_of(at::ScalarType own) const { return at::isFloatingType(own) ? dtype().value_or(own) : own; }

  const SavedPipeline& pipeline_;
  World& world_;
  const SaveOptions& options_;
  fs::path folder_;  // empty but on rank 0
};

}  // namespace

void save_pipeline(const SavedPipeline& pipeline, const fs::path& folder, World& world, const SaveOptions& options) {
  check<UsageError>(options.max_shard_bytes > 0, "cannot save shards of at most ", options.max_shard_bytes,
                    " bytes. Give a positive size.");
  if (pipeline.loaded_with.vae) pipeline.vae->config_json();  // throws if its encoder is missing
  Saving(pipeline, world, options).run(folder);
}

}  // namespace pardiff::flux
