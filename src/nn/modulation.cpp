#include <ATen/ATen.h>
#include <pardiff/nn/modulation.h>

#include "nn/kernels/choice.h"
#include "nn/kernels/elementwise.h"

namespace pardiff::nn {
namespace {

// Puts the whole of each shard, in their order, where there is nothing yet.
void fill_in(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& shards, const ProcessGroup& group) {
  const auto all = gather_from_group(at::cat(shards, -1), group);  // [ranks, B, widths of all]
  auto shard = shards.begin();
  int64_t start = 0;
  for (auto& output : outputs) {
    if (output.defined()) continue;
    const int64_t width = (shard++)->size(-1);
    output = all.narrow(-1, start, width).movedim(0, -2).flatten(-2);  // [ranks, B, width] -> [B, ranks * width]
    start += width;
  }
}

// A product of other rows beside these would sum in another order.
template <typename Product>
at::Tensor by_rows(const at::Tensor& x, int64_t rows_at_once, const Product& product) {
  if (rows_at_once == 0 || rows_at_once >= x.size(0)) return product(x);
  std::vector<at::Tensor> parts;
  for (const auto& rows : x.split(rows_at_once)) parts.push_back(product(rows));
  return at::cat(parts);
}

// [B, S, dim], for which a modulation has [B, 1, dim].
kernels::Shape shape_of(const at::Tensor& x) { return {x.size(0), x.size(1), x.size(2)}; }

bool fits(const at::Tensor& modulation, const at::Tensor& x) {
  return x.dim() == 3 && modulation.dim() == 3 && modulation.size(0) == x.size(0) && modulation.size(1) == 1 &&
         modulation.size(2) == x.size(2);
}

}  // namespace

ModulationImpl::ModulationImpl(int64_t dim, int64_t chunks, const ParameterOptions& parameters)
    : torch::nn::Module("Modulation"),
      linear(register_module("linear", Linear(dim, chunks * dim, LinearOptions{.parameters = parameters}))),
      chunks_(chunks) {}

std::vector<std::vector<at::Tensor>> modulations(const std::vector<Modulation>& layers, const at::Tensor& condition,
                                                 int64_t rows_at_once) {
  std::vector<at::Tensor> outputs, shards;
  ProcessGroup group;
  at::Tensor copied;
  for (const auto& layer : layers) {
    const auto& sharding = layer->linear->sharding;
    if (sharding.style != ShardStyle::kColumn) {
      outputs.push_back(by_rows(condition, rows_at_once,
                                [&](const at::Tensor& rows) { return Linear(layer->linear)->forward(rows); }));
      continue;
    }
    if (!copied.defined()) {
      group = sharding.group;
      copied = copy_to_group(condition, group);
    }
    shards.push_back(by_rows(copied, rows_at_once, [&](const at::Tensor& rows) {
      return at::linear(rows, layer->linear->weight, layer->linear->bias);
    }));
    outputs.emplace_back();  // once it is gathered
  }
  if (!shards.empty()) fill_in(outputs, shards, group);
  std::vector<std::vector<at::Tensor>> chunks;
  for (size_t i = 0; i < layers.size(); ++i) chunks.push_back(outputs[i].unsqueeze(1).chunk(layers[i]->chunks(), -1));
  return chunks;
}

at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps) {
  const int64_t dim = x.size(-1);
  const auto plain_shift = shift.contiguous(), plain_scale = scale.contiguous();  // no copy for a batch of one
  if (kernels::may_fuse(x, plain_shift, plain_scale) && fits(shift, x) && fits(scale, x)) {
    auto out = at::empty_like(x);
    kernels::modulated_norm(x.const_data_ptr<float>(), plain_shift.const_data_ptr<float>(),
                            plain_scale.const_data_ptr<float>(), out.mutable_data_ptr<float>(), shape_of(x), eps);
    return out;
  }
  // For one row of the batch, scale and shift are just what the kernel takes as its weights.
  if (scale.numel() == dim) return at::layer_norm(x, {dim}, scale.flatten() + 1, shift.flatten(), eps);
  auto normed = at::layer_norm(x, {dim}, {}, {}, eps);
  if (at::GradMode::is_enabled()) return at::addcmul(shift, normed, scale + 1);
  return at::addcmul_out(normed, shift, normed, scale + 1);
}

at::Tensor gated_residual(const at::Tensor& x, const at::Tensor& gate, at::Tensor y) {
  const auto plain_gate = gate.contiguous();
  if (kernels::may_fuse(x, plain_gate, y) && fits(gate, x) && y.sizes() == x.sizes()) {
    kernels::gated_residual(x.const_data_ptr<float>(), plain_gate.const_data_ptr<float>(), y.mutable_data_ptr<float>(),
                            shape_of(x));
    return y;
  }
  if (at::GradMode::is_enabled()) return at::addcmul(x, gate, y);
  return at::addcmul_out(y, x, gate, y);
}

}  // namespace pardiff::nn
