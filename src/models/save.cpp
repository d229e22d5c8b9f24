#include <ATen/ATen.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/core/dtype_name.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/models/model.h>
#include <pardiff/models/save.h>
#include <pardiff/nn/linear.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/module_tree.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;

// How a parameter is cut, and with whom this rank shares it.
struct Cut {
  int64_t dim;
  const nn::LinearSharding* sharding;
};

std::map<std::string, Cut> cuts_of(torch::nn::Module& root) {
  std::map<std::string, Cut> cuts;
  for_each_module(root, [&](const FoundModule& found) {
    const auto* linear = found.module->as<nn::LinearImpl>();
    if (!linear || linear->sharding.style == nn::ShardStyle::kWhole) return;
    const bool is_column = linear->sharding.style == nn::ShardStyle::kColumn;
    cuts.emplace(joined_path(found.path, "weight"), Cut{is_column ? 0 : 1, &linear->sharding});
    if (is_column && linear->bias.defined()) {
      cuts.emplace(joined_path(found.path, "bias"), Cut{0, &linear->sharding});
    }
  });
  return cuts;
}

struct SavedParameter {
  std::string name;
  at::Tensor value;  // this rank's slice, if it is cut
  std::optional<Cut> cut;

  std::vector<int64_t> whole_shape() const {
    auto shape = value.sizes().vec();
    if (cut) shape[static_cast<size_t>(cut->dim)] *= cut->sharding->group.size();
    return shape;
  }
  // Collective: the ranks that share it.
  at::Tensor whole() const {
    if (!cut) return value;
    return nn::whole_from_shards(value, cut->dim, cut->sharding->blocks, cut->sharding->group);
  }
};

std::vector<SavedParameter> parameters_of(torch::nn::Module& module) {
  const auto cuts = cuts_of(module);
  std::vector<SavedParameter> parameters;
  for (const auto& parameter : module.named_parameters()) {
    const auto found = cuts.find(parameter.key());
    parameters.push_back({parameter.key(), parameter.value().detach(),
                          found == cuts.end() ? std::nullopt : std::optional(found->second)});
  }
  return parameters;
}

// What rank 0 tells the others: the index of the parameter that it needs next, or how the writing ended.
constexpr int64_t kDone = -1, kFailed = -2;

int64_t word_from_rank_0(int64_t word, World& world) {
  const auto message = at::full({1}, word, at::kLong);
  broadcast(message, 0, world.host_group()).wait();
  return message.item<int64_t>();
}

using Write = std::function<void(const std::vector<DeferredTensor>&)>;

// The order of writing is the files'. The other ranks need not know it: they are told.
void lead(const std::vector<SavedParameter>& parameters, World& world, const SaveOptions& options, const Write& write) {
  std::vector<DeferredTensor> tensors;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    const auto own = parameter.value.scalar_type();
    const auto dtype = options.dtype && at::isFloatingType(own) ? *options.dtype : own;
    tensors.push_back({parameter.name, dtype, parameter.whole_shape(), [&parameter, &world, i, dtype] {
                         word_from_rank_0(static_cast<int64_t>(i), world);
                         return parameter.whole().to(dtype);
                       }});
  }
  try {
    write(tensors);
  } catch (const CommError&) {
    throw;  // nobody is left to be told
  } catch (const std::exception& error) {
    word_from_rank_0(kFailed, world);
    world.text_from_rank_0(error.what());
    throw;
  }
  word_from_rank_0(kDone, world);
}

void follow(const std::vector<SavedParameter>& parameters, World& world) {
  for (;;) {
    const auto word = word_from_rank_0(0, world);
    if (word == kDone) return;
    check<CheckpointError>(word != kFailed, word == kFailed ? world.text_from_rank_0("") : std::string());
    parameters.at(static_cast<size_t>(word)).whole();
  }
}

void save(torch::nn::Module& module, World& world, const SaveOptions& options, const Write& write) {
  check<UsageError>(options.max_shard_bytes > 0, "cannot save shards of at most ", options.max_shard_bytes,
                    " bytes. Give a positive size.");
  const at::NoGradGuard no_grad;
  if (const auto* model = dynamic_cast<Model*>(&module)) model->need_weights();
  const auto parameters = parameters_of(module);
  if (world.rank() == 0) {
    lead(parameters, world, options, write);
  } else {
    follow(parameters, world);
  }
}

}  // namespace

void save_parameters(torch::nn::Module& module, const fs::path& folder, const std::string& stem, World& world,
                     const SaveOptions& options) {
  save(module, world, options, [&](const std::vector<DeferredTensor>& tensors) {
    save_checkpoint(folder, stem, tensors, options.max_shard_bytes, options.variant);
  });
}

void save_pretrained(Model& model, const fs::path& folder, World& world, const SaveOptions& options) {
  check<ConfigError>(
      !model.weight_shards(), "the weights of this ", model.class_name(),
      " are sharded over ranks (shard_weights_over, fsdp_degree). Call disable_parallelism before saving.");
  model.need_weights();
  auto config = nlohmann::ordered_json::parse(model.config_json());
  const bool is_transformers = config.contains("architectures");
  // transformers takes the dtype from the config, not from the weights.
  if (is_transformers) config["dtype"] = dtype_name(options.dtype.value_or(model.parameters().front().scalar_type()));
  save(model, world, options, [&](const std::vector<DeferredTensor>& tensors) {
    save_checkpoint(folder, is_transformers ? "model" : "diffusion_pytorch_model", tensors, options.max_shard_bytes,
                    options.variant);
    write_text_file(folder / "config.json", config.dump(2) + "\n");
  });
}

}  // namespace pardiff
