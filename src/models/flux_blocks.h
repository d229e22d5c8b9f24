#pragma once
#include <pardiff/attention/attention.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/nn/feed_forward.h>
#include <pardiff/nn/norm.h>
#include <pardiff/nn/rope.h>

#include <utility>
#include <vector>

namespace pardiff::flux {

/// What every block of one call gets.
struct Call {
  nn::RotaryTable rotary;  // of this rank's text tokens, then its image tokens
  SequenceLayout tokens;   // of the joint sequence [text, image]
  int64_t text_length;     // this rank's text tokens
};

/// Shifts, scales and gates of one modulation, [B, 1, dim] each.
using Chunks = std::vector<at::Tensor>;

/// Both streams of a double block.
struct Streams {
  at::Tensor text, image;  // [B, tokens, dim]
};

/// Joint attention over text and image, each with projections of its own. Knows no number of heads: that follows from
/// the width of its projections, which under tensor parallelism is a slice.
class JointAttentionImpl : public torch::nn::Module {
 public:
  JointAttentionImpl(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters);

  /// Shapes: [B, tokens, dim] both; returns the same.
  Streams forward(const Streams& inputs, const Call& call);

 private:
  int64_t head_dim_;
  nn::RMSNorm norm_q_, norm_k_, norm_added_q_, norm_added_k_;
  nn::Linear to_q_, to_k_, to_v_, add_q_proj_, add_k_proj_, add_v_proj_, to_out_, to_add_out_;
  Attention attention_;
};
TORCH_MODULE(JointAttention);

/// Attention over the concatenated sequence, without an output projection.
class SingleAttentionImpl : public torch::nn::Module {
 public:
  SingleAttentionImpl(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters);

  /// Shapes: [B, tokens, dim]; returns [B, tokens, width].
  at::Tensor forward(const at::Tensor& x, const Call& call, const Meanwhile& meanwhile = {});
  /// Of this rank's query projection.
  int64_t width() const { return to_q_->weight.size(0); }
  bool exchanges_heads() const { return attention_->exchanges_heads(); }

 private:
  int64_t head_dim_;
  nn::RMSNorm norm_q_, norm_k_;
  nn::Linear to_q_, to_k_, to_v_;
  Attention attention_;
};
TORCH_MODULE(SingleAttention);

/// Attention and feed-forward of both streams, modulated.
class DoubleBlockImpl : public torch::nn::Module {
 public:
  DoubleBlockImpl(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters);

  /// `image_mod` and `text_mod` are those of `modulation_layers`, in this order.
  Streams forward(const Streams& streams, const Chunks& image_mod, const Chunks& text_mod, const Call& call);

  std::vector<nn::Modulation> modulation_layers() const { return {norm1_, norm1_context_}; }

 private:
  nn::Modulation norm1_, norm1_context_;
  JointAttention attn_;
  nn::FeedForward ff_, ff_context_;
};
TORCH_MODULE(DoubleBlock);

/// Attention and feed-forward side by side over the joint sequence.
class SingleBlockImpl : public torch::nn::Module {
 public:
  SingleBlockImpl(const FluxTransformerConfig& config, const nn::ParameterOptions& parameters);

  /// Shapes: x [B, text and image tokens, dim]; returns the same.
  at::Tensor forward(const at::Tensor& x, const Chunks& mod, const Call& call);

  std::vector<nn::Modulation> modulation_layers() const { return {norm_}; }

 private:
  at::Tensor behind_exchanges(const at::Tensor& normed, const Call& call);

  nn::Modulation norm_;
  SingleAttention attn_;
  nn::Linear proj_mlp_, proj_out_;
};
TORCH_MODULE(SingleBlock);

}  // namespace pardiff::flux
