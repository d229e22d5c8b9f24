#include "pipelines/part_loading.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/io/variant.h>

#include <set>

#include "models/weight_shards.h"
#include "models/weights_on_demand.h"

namespace pardiff {

PartFiles open_part(const std::filesystem::path& folder, const std::string& stem, const std::string& variant) {
  return {ConfigFile::open(folder / "config.json"), Checkpoint::open(folder, stem, variant)};
}

PartFiles open_pipeline_part(const std::filesystem::path& folder, const std::string& stem, const std::string& variant) {
  return open_part(folder, stem, variant_of_part(folder, stem, variant));
}

void defer_part(Model& model, const Checkpoint& checkpoint, LoadOptions options, World& world,
                const std::optional<ParallelConfig>& parallel) {
  options.device = world.device();
  options.warns_of_unused = world.rank() == 0;
  const bool sharded = parallel && model.check_parallelism(*parallel, world).size("tp") > 1;
  check_parameters(model, parameter_source(checkpoint), options);  // before anything is communicated
  const auto shards = parallel ? model.prepare_weight_shards(*parallel, world) : nullptr;
  if (shards) {
    options.on_loaded = [weak = std::weak_ptr(shards)](const at::Tensor& parameter) {
      if (const auto living = weak.lock()) living->parameter_is_loaded(parameter);
    };
  }
  model.read_on_demand(std::make_shared<WeightsOnDemand>(model, checkpoint, std::move(options)));
  model.eval();
  if (parallel) model.enable_parallelism(*parallel, world, sharded);
}

void fill_part(Model& model, const Checkpoint& checkpoint, LoadOptions options, World& world,
               const std::optional<ParallelConfig>& parallel) {
  defer_part(model, checkpoint, std::move(options), world, parallel);
  model.need_weights();
}

ParameterBytes parameter_bytes(const Model& model, const Checkpoint* checkpoint) {
  if (const auto& shards = model.weight_shards()) return {shards->bytes(), shards->bytes()};
  std::set<const void*> mapped;
  if (checkpoint && model.parameters().front().is_cpu()) {
    for (const auto& name : checkpoint->names()) {
      const auto copied = checkpoint->bytes_copied();
      const auto* data = checkpoint->tensor(name).storage().data();
      if (checkpoint->bytes_copied() == copied) mapped.insert(data);  // else it was not aligned and had to move
    }
  }
  ParameterBytes bytes;
  for (const auto& item : model.named_parameters()) {
    const auto& parameter = item.value();
    if (is_placeholder(parameter)) continue;  // not read yet, or given back
    const auto size = static_cast<int64_t>(parameter.nbytes());
    bytes.total += size;
    if (model.weights_on_demand() && model.weights_on_demand()->is_shared(item.key(), parameter)) continue;
    // A parameter may be some rows of a tensor.
    if (!mapped.count(parameter.storage().data())) bytes.private_bytes += size;
  }
  return bytes;
}

ParameterBytes& ParameterBytes::operator+=(const ParameterBytes& other) {
  total += other.total;
  private_bytes += other.private_bytes;
  return *this;
}

}  // namespace pardiff
