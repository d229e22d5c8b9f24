#include "pipelines/flux_batch.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>

#include <algorithm>
#include <string>
#include <vector>

#include "nn/token_shares.h"
#include "pipelines/flux_inputs_check.h"

namespace pardiff::flux {
namespace {

// The mesh axes whose ranks make different pictures. A custom mesh may have such an axis for purposes of its own.
std::vector<std::string> picture_axes(const ParallelConfig& config) {
  std::vector<std::string> axes;
  if (config.dp_degree > 1) axes.emplace_back("dp");
  if (config.fsdp_degree > 1) axes.emplace_back("fsdp");
  return axes;
}

std::vector<std::string> other_axes(const Mesh& mesh, const std::vector<std::string>& axes) {
  std::vector<std::string> others;
  for (const auto& [axis, size] : mesh.axes()) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) others.push_back(axis);
  }
  return others;
}

}  // namespace

bool needs_folding(const ParallelConfig& config, int64_t pictures) {
  return config.fsdp_degree > 1 && pictures < int64_t{config.dp_degree} * config.fsdp_degree;
}

void check_batch(const FluxPipelineInputs& inputs, const ParallelConfig& config) {
  const int64_t pictures = picture_count(inputs);
  check<ConfigError>(pictures >= config.dp_degree, "dp_degree is ", config.dp_degree, ", and there ",
                     pictures == 1 ? "is 1 picture" : text_of("are ", pictures, " pictures"),
                     " to share out. Give more prompts (--prompt, --num-images), or let the ranks share a picture's "
                     "tokens instead: --ulysses-degree (ulysses_degree).");
  check<ConfigError>(config.cfg_degree == 1 || uses_true_cfg(inputs), "cfg_degree is ", config.cfg_degree,
                     ", and a step has one pass: true guidance is off. Give --negative-prompt and a --true-cfg-scale "
                     "above 1 (negative_prompt, true_cfg_scale), or leave --cfg-degree out.");
}

int64_t picture_groups(const Model& transformer) {
  if (!transformer.is_parallel()) return 1;
  return static_cast<int64_t>(transformer.mesh()->ranks_along(picture_axes(*transformer.parallel_config())).size());
}

BatchShare::BatchShare(const Model& transformer, int64_t pictures, World& world)
    : layout_(SequenceLayout::split(pictures, 1)), leads_(world.rank() == 0), device_(world.device()) {
  if (!transformer.is_parallel()) return;
  const auto& config = *transformer.parallel_config();
  const auto& mesh = *transformer.mesh();
  const auto axes = picture_axes(config);
  groups_ = world.group_of(mesh.ranks_along(axes));
  layout_ = SequenceLayout::split(pictures, groups_.size());
  const auto leading = mesh.ranks_along(axes, 0);
  leads_ = std::find(leading.begin(), leading.end(), world.rank()) != leading.end();
  decoding_ = world.group_of(mesh.ranks_along(other_axes(mesh, axes)));
  if (config.cfg_degree == 1) return;
  passes_ = world.group_of(mesh.ranks_along({"cfg"}));
  pass_ = passes_.rank() == 0 ? Pass::kPositive : Pass::kNegative;
}

at::Tensor BatchShare::own(const at::Tensor& rows) const {
  return rows.defined() ? nn::own_share(rows, 0, layout_, groups_) : rows;
}

at::Tensor BatchShare::gathered(const at::Tensor& own_rows) const {
  return groups_.size() == 1 ? own_rows : nn::gather_shares(own_rows, 0, layout_, groups_);
}

at::Tensor BatchShare::both_passes(const at::Tensor& own) const {
  auto shape = own.sizes().vec();
  shape.insert(shape.begin(), passes_.size());
  const auto both = at::empty(shape, own.options());
  const std::vector<int64_t> counts(static_cast<size_t>(passes_.size()), own.numel());
  all_gather(both, own.contiguous(), counts, passes_).wait();
  return both;
}

at::Tensor BatchShare::on_rank_0(const at::Tensor& own_pictures) const {
  if (groups_.size() == 1) return own_pictures;
  const auto sent = own_pictures.contiguous().to(device_);
  const auto nothing = at::empty({0}, sent.options());
  if (groups_.rank() > 0) {
    hop(sent, 0, nothing, 0, groups_).wait();
    return {};
  }
  std::vector<at::Tensor> all = {own_pictures};
  for (int group = 1; group < groups_.size(); ++group) {
    auto shape = sent.sizes().vec();
    shape[0] = layout_.local_length(group);
    const auto received = at::empty(shape, sent.options());
    hop(nothing, group, received, group, groups_).wait();
    all.push_back(received.to(own_pictures.device()));
  }
  return at::cat(all);
}

}  // namespace pardiff::flux
