#include "models/flux_blocks.h"

#include <ATen/ATen.h>
#include <pardiff/core/trace.h>
#include <pardiff/nn/activation.h>

namespace pardiff::flux {
namespace {

nn::Linear linear(int64_t in_features, int64_t out_features, const nn::ParameterOptions& parameters) {
  return nn::Linear(in_features, out_features, nn::LinearOptions{.parameters = parameters});
}

nn::RMSNorm head_norm(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters) {
  return nn::RMSNorm(config.attention_head_dim, nn::RMSNormOptions{.eps = 1e-6, .parameters = parameters});
}

// [B, S, heads * head_dim] -> [B, S, heads, head_dim]; the heads are those of this rank's slice of the projection.
at::Tensor as_heads(const at::Tensor& x, int64_t head_dim) {
  return x.unflatten(-1, {x.size(-1) / head_dim, head_dim});
}

// float16 overflows to infinity where the reference saturates.
at::Tensor saturated(const at::Tensor& x) {
  constexpr double kLargestHalf = 65504;
  return x.scalar_type() == at::kHalf ? at::clamp(x, -kLargestHalf, kLargestHalf) : x;
}

}  // namespace

JointAttentionImpl::JointAttentionImpl(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters)
    : torch::nn::Module("JointAttention"),
      head_dim_(config.attention_head_dim),
      norm_q_(register_module("norm_q", head_norm(config, parameters))),
      norm_k_(register_module("norm_k", head_norm(config, parameters))),
      norm_added_q_(register_module("norm_added_q", head_norm(config, parameters))),
      norm_added_k_(register_module("norm_added_k", head_norm(config, parameters))),
      to_q_(register_module("to_q", linear(config.inner_dim(), config.inner_dim(), parameters))),
      to_k_(register_module("to_k", linear(config.inner_dim(), config.inner_dim(), parameters))),
      to_v_(register_module("to_v", linear(config.inner_dim(), config.inner_dim(), parameters))),
      add_q_proj_(register_module("add_q_proj", linear(config.inner_dim(), config.inner_dim(), parameters))),
      add_k_proj_(register_module("add_k_proj", linear(config.inner_dim(), config.inner_dim(), parameters))),
      add_v_proj_(register_module("add_v_proj", linear(config.inner_dim(), config.inner_dim(), parameters))),
      to_out_(linear(config.inner_dim(), config.inner_dim(), parameters)),
      to_add_out_(register_module("to_add_out", linear(config.inner_dim(), config.inner_dim(), parameters))),
      attention_(register_module("attention", Attention())) {
  register_module("to_out", torch::nn::ModuleList())->push_back(to_out_);
}

Streams JointAttentionImpl::forward(const Streams& inputs, const Call& call) {
  const auto heads = [&](nn::Linear& projection, const at::Tensor& x) {
    return as_heads(projection->forward(x), head_dim_);
  };
  const auto query = nn::norm_and_rotate_joint({norm_added_q_, heads(add_q_proj_, inputs.text)},
                                               {norm_q_, heads(to_q_, inputs.image)}, call.rotary);
  const auto key = nn::norm_and_rotate_joint({norm_added_k_, heads(add_k_proj_, inputs.text)},
                                             {norm_k_, heads(to_k_, inputs.image)}, call.rotary);
  const auto value = at::cat({heads(add_v_proj_, inputs.text), heads(to_v_, inputs.image)}, 1);
  const auto attended =
      attention_->forward(query, key, value, {.query_layout = call.tokens, .key_layout = call.tokens}).flatten(2);
  const int64_t text_length = call.text_length, image_length = attended.size(1) - text_length;
  const auto [image, text] = nn::forward_together(to_out_, attended.narrow(1, text_length, image_length).contiguous(),
                                                  to_add_out_, attended.narrow(1, 0, text_length).contiguous());
  return {text, image};
}

SingleAttentionImpl::SingleAttentionImpl(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters)
    : torch::nn::Module("SingleAttention"),
      head_dim_(config.attention_head_dim),
      norm_q_(register_module("norm_q", head_norm(config, parameters))),
      norm_k_(register_module("norm_k", head_norm(config, parameters))),
      to_q_(register_module("to_q", linear(config.inner_dim(), config.inner_dim(), parameters))),
      to_k_(register_module("to_k", linear(config.inner_dim(), config.inner_dim(), parameters))),
      to_v_(register_module("to_v", linear(config.inner_dim(), config.inner_dim(), parameters))),
      attention_(register_module("attention", Attention())) {}

at::Tensor SingleAttentionImpl::forward(const at::Tensor& x, const Call& call, const Meanwhile& meanwhile) {
  const auto query = nn::norm_and_rotate(norm_q_, as_heads(to_q_->forward(x), head_dim_), call.rotary);
  const auto key = nn::norm_and_rotate(norm_k_, as_heads(to_k_->forward(x), head_dim_), call.rotary);
  const auto value = as_heads(to_v_->forward(x), head_dim_);
  return attention_
      ->forward(query, key, value, {.query_layout = call.tokens, .key_layout = call.tokens, .meanwhile = meanwhile})
      .flatten(2);
}

DoubleBlockImpl::DoubleBlockImpl(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters)
    : torch::nn::Module("DoubleBlock"),
      norm1_(register_module("norm1", nn::Modulation(config.inner_dim(), 6, parameters))),
      norm1_context_(register_module("norm1_context", nn::Modulation(config.inner_dim(), 6, parameters))),
      attn_(register_module("attn", JointAttention(config, parameters))),
      ff_(register_module("ff", nn::FeedForward(config.inner_dim(), 4 * config.inner_dim(), parameters))),
      ff_context_(
          register_module("ff_context", nn::FeedForward(config.inner_dim(), 4 * config.inner_dim(), parameters))) {}

// A modulation is shift, scale and gate of the attention, then of the feed-forward.
Streams DoubleBlockImpl::forward(const Streams& streams, const Chunks& image_mod, const Chunks& text_mod,
                                 const Call& call) {
  auto attended = attn_->forward({nn::modulated_norm(streams.text, text_mod[0], text_mod[1]),
                                  nn::modulated_norm(streams.image, image_mod[0], image_mod[1])},
                                 call);
  auto image = nn::gated_residual(streams.image, image_mod[2], std::move(attended.image));
  auto text = nn::gated_residual(streams.text, text_mod[2], std::move(attended.text));

  auto [image_fed, text_fed] = nn::forward_together(
      ff_->output, ff_->hidden(nn::modulated_norm(image, image_mod[3], image_mod[4])), ff_context_->output,
      ff_context_->hidden(nn::modulated_norm(text, text_mod[3], text_mod[4])));
  image = nn::gated_residual(image, image_mod[5], std::move(image_fed));
  text = nn::gated_residual(text, text_mod[5], std::move(text_fed));
  return {saturated(text), image};
}

SingleBlockImpl::SingleBlockImpl(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters)
    : torch::nn::Module("SingleBlock"),
      norm_(register_module("norm", nn::Modulation(config.inner_dim(), 3, parameters))),
      attn_(register_module("attn", SingleAttention(config, parameters))),
      proj_mlp_(register_module("proj_mlp", linear(config.inner_dim(), 4 * config.inner_dim(), parameters))),
      proj_out_(register_module("proj_out", linear(5 * config.inner_dim(), config.inner_dim(), parameters))) {}

// [attention | activated MLP], the MLP while the attention's messages travel: three quarters of it while query, key and
// value do, the rest while the result does. Which outputs a product has does not change how each is summed up.
at::Tensor SingleBlockImpl::behind_exchanges(const at::Tensor& normed, const Call& call) {
  const int64_t width = attn_->width(), outputs = proj_mlp_->weight.size(0), first = outputs / 4 * 3;
  at::Tensor mlp, both;
  const auto attended =
      attn_->forward(normed, call,
                     {.on_exchange =
                          [&] {
                            const TracedSpan span("hidden", "mlp", 0);
                            mlp = proj_mlp_->outputs(normed, 0, first);
                          },
                      .on_return =
                          [&] {
                            const TracedSpan span("hidden", "mlp", 1);
                            both = nn::gelu_tanh_beside_room(width, {mlp, proj_mlp_->outputs(normed, first, outputs)});
                          }});
  both.narrow(-1, 0, width).copy_(attended);
  return both;
}

// The modulation is shift, scale, gate.
at::Tensor SingleBlockImpl::forward(const at::Tensor& x, const Chunks& mod, const Call& call) {
  const auto normed = nn::modulated_norm(x, mod[0], mod[1]);
  const bool hides = attn_->exchanges_heads() && !at::GradMode::is_enabled() && proj_mlp_->has_separate_outputs();
  const auto both = hides ? behind_exchanges(normed, call)
                          : nn::beside_gelu_tanh(attn_->forward(normed, call), proj_mlp_->forward(normed));
  return saturated(nn::gated_residual(x, mod[2], proj_out_->forward(both)));
}

}  // namespace pardiff::flux
