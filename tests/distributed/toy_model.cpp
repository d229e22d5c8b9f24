#include "distributed/toy_model.h"

#include <ATen/ATen.h>

#include "support/plain_attention.h"

namespace pardiff::testing {
namespace {

constexpr int64_t kMostTokens = 32;

nn::Linear linear(int64_t in_features, int64_t out_features) {
  return nn::Linear(in_features, out_features, nn::LinearOptions{.parameters = {.dtype = at::kDouble}});
}

// [B, S, n * heads * head_dim] -> n x [B, S, heads, head_dim]
std::vector<at::Tensor> heads(const at::Tensor& x, int64_t n) {
  return x.unflatten(-1, {n, -1, kToyHeadDim}).unbind(2);
}

}  // namespace

ToyBlockImpl::ToyBlockImpl()
    : to_qkv(register_module("to_qkv", linear(kToyDim, 3 * kToyDim))),
      to_out(register_module("to_out", linear(kToyDim, kToyDim))),
      to_query(register_module("to_query", linear(kToyDim, kToyDim))),
      to_key_value(register_module("to_key_value", linear(kToyDim, 2 * kToyDim))),
      cross_out(register_module("cross_out", linear(kToyDim, kToyDim))),
      widen(register_module("widen", linear(kToyDim, 2 * kToyDim))),
      narrow(register_module("narrow", linear(2 * kToyDim, kToyDim))),
      self_attention(register_module("self_attention", Attention())),
      cross_attention(register_module("cross_attention", Attention())) {}

at::Tensor ToyBlockImpl::forward(const at::Tensor& hidden_states, const at::Tensor& context,
                                 const SequenceLayout& tokens) {
  const auto qkv = heads(to_qkv->forward(hidden_states), 3);
  const auto attended = self_attention->forward(qkv[0], qkv[1], qkv[2], {.query_layout = tokens, .key_layout = tokens});
  auto x = hidden_states + to_out->forward(attended.flatten(2));
  const auto query = heads(to_query->forward(x), 1), key_value = heads(to_key_value->forward(context), 2);
  const auto crossed = cross_attention->forward(query[0], key_value[0], key_value[1], {.query_layout = tokens});
  x = x + cross_out->forward(crossed.flatten(2));
  return x + narrow->forward(at::gelu(widen->forward(x)));
}

ToyPositionsImpl::ToyPositionsImpl() : boundary(register_module("boundary", Boundary())) {
  table = register_parameter("table", at::zeros({kMostTokens, kToyDim}, at::kDouble));
}

at::Tensor ToyPositionsImpl::forward(int64_t length) { return boundary->leave(table.narrow(0, 0, length)); }

ToyModelImpl::ToyModelImpl()
    : boundary(register_module("boundary", Boundary(std::vector<std::string>{"hidden_states", "sides"}))),
      positions(register_module("positions", ToyPositions())),
      blocks(register_module("blocks", torch::nn::ModuleList())),
      proj_out(register_module("proj_out", linear(kToyDim, kToyDim))) {
  for (int i = 0; i < 2; ++i) blocks->push_back(ToyBlock());
}

at::Tensor ToyModelImpl::forward(const ToyInputs& inputs) {
  const auto position = positions->forward(inputs.hidden_states.size(1));
  auto x = boundary->enter("hidden_states", inputs.hidden_states);
  const auto sides = boundary->enter("sides", inputs.sides);
  const auto tokens = boundary->layout("hidden_states");
  x = x * sides[0] + position + sides[1].transpose(0, 1);
  for (const auto& block : *blocks) x = block->as<ToyBlock>()->forward(x, inputs.context, tokens);
  return proj_out->forward(x);
}

ToyModel make_toy(uint64_t seed) {
  const at::NoGradGuard no_grad;
  ToyModel model;
  for (auto& parameter : model->named_parameters()) {
    auto& tensor = parameter.value();
    tensor.copy_(random_normal({tensor.numel()}, seed++).view(tensor.sizes()) * 0.2);
  }
  return model;
}

ToyInputs toy_inputs(int64_t length, uint64_t seed) {
  return {random_normal({2, length, kToyDim}, seed + 1),
          random_normal({2, 5, kToyDim}, seed + 2),
          {random_normal({2, length, 1}, seed + 3), random_normal({length, 1, kToyDim}, seed + 4)}};
}

ContextParallelPlan toy_context_plan() {
  return {
      {"",
       {{"hidden_states", ContextParallelInput{.split_dim = 1, .expected_dims = 3}},
        {"sides", {ContextParallelInput{.split_dim = 1}, ContextParallelInput{.split_dim = 0, .expected_dims = 3}}}}},
      {"positions", {{0, ContextParallelInput{.split_dim = 0, .expected_dims = 2, .split_output = true}}}},
      {"proj_out", ContextParallelOutput{.gather_dim = -2, .expected_dims = 3}},
  };
}

TensorParallelPlan toy_tensor_plan() {
  return {{"blocks.*.to_qkv", TensorParallelStyle::packed_colwise({1, 1, 1})},
          {"blocks.*.to_out", "rowwise"},
          {"blocks.*.to_query", "colwise"},
          {"blocks.*.to_key_value", TensorParallelStyle::packed_colwise({kToyDim, kToyDim})},
          {"blocks.*.cross_out", "rowwise"},
          {"blocks.*.widen", TensorParallelStyle::packed_colwise({1, 3})},
          {"blocks.*.narrow", TensorParallelStyle::packed_rowwise({1, 3})}};
}

ToyRun run_toy(ToyModel& model, const ToyInputs& inputs) {
  model->zero_grad();
  auto given = inputs;
  given.hidden_states = inputs.hidden_states.detach().clone().requires_grad_();
  given.context = inputs.context.detach().clone().requires_grad_();
  const auto output = model->forward(given);
  const auto weight = random_normal({2, inputs.hidden_states.size(1), kToyDim}, 99);
  (output * weight).sum().backward();
  ToyRun run{output.detach(), given.hidden_states.grad(), given.context.grad(), {}};
  for (const auto& parameter : model->named_parameters()) run.gradients[parameter.key()] = parameter.value().grad();
  return run;
}

}  // namespace pardiff::testing
