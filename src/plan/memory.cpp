#include <pardiff/models/apply.h>

#include <algorithm>
#include <map>

#include "pipelines/flux_batch.h"
#include "pipelines/flux_memory.h"
#include "plan/layouts.h"

namespace pardiff::plan {
namespace {

double elements(const at::Tensor& parameter, const TensorSlice* slice) {
  auto count = static_cast<double>(parameter.numel());
  if (!slice) return count;
  int64_t kept = 0;
  for (const auto& [begin, end] : slice->ranges) kept += end - begin;
  return count * static_cast<double>(kept) / static_cast<double>(parameter.size(slice->dim));
}

// Elements of the transformer's parameters on rank 0 of each tp group, whole and by unit.
struct LocalElements {
  double all = 0;
  double two_largest_units = 0;
};

LocalElements local_elements(FluxTransformer2DModelImpl& blank, int tp) {
  const auto slices = tensor_parallel_slices(blank, blank.tensor_parallel_plan(), tp, 0);
  std::map<const at::TensorImpl*, double> own;
  LocalElements result;
  for (const auto& parameter : blank.named_parameters()) {
    const auto slice = slices.find(parameter.key());
    const double count = elements(parameter.value(), slice == slices.end() ? nullptr : &slice->second);
    own[parameter.value().unsafeGetTensorImpl()] = count;
    result.all += count;
  }
  std::vector<double> units = {0, 0};
  for (const auto& unit : blank.weight_units()) {
    units.push_back(0);
    for (const auto& parameter : unit->parameters()) units.back() += own[parameter.unsafeGetTensorImpl()];
  }
  std::partial_sort(units.begin(), units.begin() + 2, units.end(), std::greater<>());
  result.two_largest_units = units[0] + units[1];
  return result;
}

int ranks_that_share_weights(const ParallelConfig& config, int ranks) {
  return static_cast<int>(config.mesh(0, ranks).ranks_along(config.weight_axes()).size());
}

// Other ranks' keys and values: two blocks on their way round a rotating ring, or all of them.
double remote_key_values(const Work& work, const ParallelConfig& run, int64_t pictures, Profile profile) {
  if (!run.context_parallel_config || run.context_parallel_config->ring() == 1) return 0;
  const auto& context = *run.context_parallel_config;
  const int tp = run.tensor_parallel_config ? run.tensor_parallel_config->degree() : 1;
  const auto tokens = static_cast<double>(work.image_tokens() + work.text_tokens);
  const double block = 2 * static_cast<double>(pictures) * tokens * static_cast<double>(work.transformer.inner_dim()) *
                       static_cast<double>(c10::elementSize(work.dtype)) /
                       (static_cast<double>(tp) * context.ulysses() * context.ring());
  const bool all = profile == Profile::kReference || context.rotate_method == "allgather";
  return block * (all ? context.ring() - 1 : std::min(2, context.ring() - 1));
}

}  // namespace

RankMemory rank_memory(const Work& work, const ParallelConfig& config, int ranks, Profile profile) {
  return rank_memory(work, *blank_transformer(work), config, ranks, profile);
}

RankMemory rank_memory(const Work& work, FluxTransformer2DModelImpl& blank, const ParallelConfig& config, int ranks,
                       Profile profile) {
  const int tp = config.tensor_parallel_config ? config.tensor_parallel_config->degree() : 1;
  const auto own = local_elements(blank, tp);
  const int sharing = ranks_that_share_weights(config, ranks);
  const double transformer = sharing == 1 ? own.all : own.all / sharing + own.two_largest_units;
  const auto bytes = static_cast<double>(c10::elementSize(work.dtype));

  const auto run = as_run(work, config);
  const int groups = run.dp_degree * run.fsdp_degree;
  const int64_t pictures = (work.pictures + groups - 1) / groups;
  const auto& context = run.context_parallel_config;
  const flux::Workload load{.pictures = work.pictures,
                            .pictures_at_once = pictures,
                            .height = work.height,
                            .width = work.width,
                            .image_tokens = work.image_tokens(),
                            .text_tokens = work.text_tokens,
                            .context_ranks = context ? context->ring() * context->ulysses() : 1,
                            .bytes_per_value = static_cast<int64_t>(bytes)};
  return {.weights = bytes * (transformer + static_cast<double>(work.other_parameters)),
          .working =
              flux::least_memory(load, work.transformer, work.vae) + remote_key_values(work, run, pictures, profile)};
}

}  // namespace pardiff::plan
