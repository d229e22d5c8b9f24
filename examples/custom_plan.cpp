// Somebody's own model, installed headers only; 4 ranks
#include <pardiff/pardiff.h>
#include <torch/nn/modules/container/modulelist.h>

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t dim, int64_t heads)
      : to_qkv(register_module("to_qkv", pardiff::nn::Linear(dim, 3 * dim))),
        to_query(register_module("to_query", pardiff::nn::Linear(dim, dim))),
        to_key_value(register_module("to_key_value", pardiff::nn::Linear(dim, 2 * dim))),
        self_attention(register_module("self_attention", pardiff::Attention())),
        cross_attention(register_module("cross_attention", pardiff::Attention())),
        heads_(heads) {}

  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& context, const at::Tensor& gate,
                     const pardiff::SequenceLayout& tokens) {
    const auto qkv =
        to_qkv->forward(hidden_states).unflatten(-1, {3, heads_, -1}).unbind(2);  // 3 x [B, S, heads, head_dim]
    const auto x =
        hidden_states +
        gate *
            self_attention->forward(qkv[0], qkv[1], qkv[2], {.query_layout = tokens, .key_layout = tokens}).flatten(2);
    const auto query = to_query->forward(x).unflatten(-1, {heads_, -1});
    const auto key_value = to_key_value->forward(context).unflatten(-1, {2, heads_, -1}).unbind(2);
    // No key layout: every rank holds all of the context, so nothing is exchanged.
    return x + cross_attention->forward(query, key_value[0], key_value[1], {.query_layout = tokens}).flatten(2);
  }

  pardiff::nn::Linear to_qkv, to_query, to_key_value;
  pardiff::Attention self_attention, cross_attention;
  int64_t heads_;
};
TORCH_MODULE(Block);

struct DenoiserImpl : torch::nn::Module {
  DenoiserImpl(int64_t dim, int64_t heads)
      : boundary(register_module("boundary", pardiff::Boundary())),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        proj_out(register_module("proj_out", pardiff::nn::Linear(dim, dim))) {
    for (int i = 0; i < 2; ++i) blocks->push_back(Block(dim, heads));
  }

  at::Tensor forward(at::Tensor hidden_states, const at::Tensor& context, at::Tensor gate) {
    hidden_states =
        boundary->enter("hidden_states", hidden_states);  // whole until a plan is applied, then this rank's share
    gate = boundary->enter("gate", gate);                 // one value per token; context is not in the plan
    const auto tokens = boundary->layout("hidden_states");
    for (const auto& block : *blocks) hidden_states = block->as<Block>()->forward(hidden_states, context, gate, tokens);
    return proj_out->forward(hidden_states);  // pardiff's layers are boundaries too: the plan gathers here
  }

  pardiff::Boundary boundary;
  torch::nn::ModuleList blocks;
  pardiff::nn::Linear proj_out;
};
TORCH_MODULE(Denoiser);

int main() {
  return pardiff::run([](pardiff::World& world) {
    at::manual_seed(7);  // the same weights and inputs on every rank
    Denoiser model(64, 4);
    const auto hidden_states = at::randn({1, 10, 64}), context = at::randn({1, 5, 64}), gate = at::randn({1, 10, 1});
    const auto alone = model->forward(hidden_states, context, gate);
    const pardiff::ContextParallelPlan plan = {
        {"",
         {{"hidden_states", pardiff::ContextParallelInput{.split_dim = 1, .expected_dims = 3}},
          {"gate", pardiff::ContextParallelInput{.split_dim = 1}}}},
        {"proj_out", pardiff::ContextParallelOutput{.gather_dim = 1}},
    };
    pardiff::apply_context_parallel(*model, {.ring_degree = 2, .ulysses_degree = 2, .ring_anything = true}, world,
                                    plan);
    const auto together = model->forward(hidden_states, context, gate);
    TORCH_CHECK(at::allclose(alone, together, 1e-5, 1e-5), "four ranks must equal one");
  });
}
