#include "models/autoencoder_kl_blocks.h"

#include <ATen/ATen.h>
#include <pardiff/nn/activation.h>

namespace pardiff {
namespace {

constexpr double kNormEps = 1e-6;

nn::GroupNorm group_norm(int64_t groups, int64_t channels, const nn::ParameterOptions& parameters) {
  return nn::GroupNorm(groups, channels, nn::GroupNormOptions{.eps = kNormEps, .parameters = parameters});
}

nn::Conv2d convolution(int64_t in_channels, int64_t out_channels, const nn::ParameterOptions& parameters) {
  return nn::Conv2d(in_channels, out_channels, 3, nn::Conv2dOptions{.padding = 1, .parameters = parameters});
}

nn::Linear linear(int64_t channels, const nn::ParameterOptions& parameters) {
  return nn::Linear(channels, channels, nn::LinearOptions{.parameters = parameters});
}

// The memory order that everything below keeps once its input has it. On a CPU channels last makes single convolutions
// 1.1 to 2.5 times as fast on two threads (most at few channels) and a whole decode of 512 x 512 about 1.2 times; at
// 128 x 128 it makes no difference. Turning the input is nothing beside that.
at::Tensor in_fast_order(const at::Tensor& x) {
  return x.contiguous(x.is_cpu() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

// x + y, into y's memory when no gradient is recorded.
at::Tensor added_to(at::Tensor y, const at::Tensor& x) { return at::GradMode::is_enabled() ? x + y : y.add_(x); }

at::Tensor activated_and_convolved(nn::GroupNorm& norm, nn::Conv2d& layer, const at::Tensor& x,
                                   const PictureRows& rows) {
  if (!rows.are_whole()) return rows.activated_and_convolved(norm, layer, x);
  return layer->forward(nn::silu(norm->forward(x)));
}

}  // namespace

VaeResnetBlockImpl::VaeResnetBlockImpl(int64_t in_channels, int64_t out_channels, int64_t groups,
                                       const nn::ParameterOptions& parameters)
    : norm1_(register_module("norm1", group_norm(groups, in_channels, parameters))),
      norm2_(register_module("norm2", group_norm(groups, out_channels, parameters))),
      conv1_(register_module("conv1", convolution(in_channels, out_channels, parameters))),
      conv2_(register_module("conv2", convolution(out_channels, out_channels, parameters))) {
  if (in_channels == out_channels) return;
  conv_shortcut_ = register_module(
      "conv_shortcut", nn::Conv2d(in_channels, out_channels, 1, nn::Conv2dOptions{.parameters = parameters}));
}

at::Tensor VaeResnetBlockImpl::forward(const at::Tensor& x, const PictureRows& rows) {
  auto y = activated_and_convolved(norm1_, conv1_, x, rows);
  y = activated_and_convolved(norm2_, conv2_, y, rows);
  if (x.size(2) == 0) return y;  // a rank without rows
  return added_to(std::move(y), conv_shortcut_ ? conv_shortcut_->forward(x) : x);
}

VaeAttentionImpl::VaeAttentionImpl(int64_t channels, int64_t groups, const nn::ParameterOptions& parameters)
    : group_norm_(register_module("group_norm", group_norm(groups, channels, parameters))),
      to_q_(register_module("to_q", linear(channels, parameters))),
      to_k_(register_module("to_k", linear(channels, parameters))),
      to_v_(register_module("to_v", linear(channels, parameters))),
      to_out_(linear(channels, parameters)),
      attention_(register_module("attention", Attention())) {
  register_module("to_out", torch::nn::ModuleList())->push_back(to_out_);
}

at::Tensor VaeAttentionImpl::forward(const at::Tensor& x, const PictureRows& rows) {
  // Normalised as one row of positions, as the reference does: in bfloat16 the kernel for pictures with channels last
  // rounds otherwise.
  const auto normed =
      rows.are_whole() ? group_norm_->forward(x.flatten(2)) : rows.normalised(group_norm_, x).flatten(2);
  const auto tokens = normed.transpose(1, 2);  // [B, C, H W] -> [B, H W, C]
  const auto query = to_q_->forward(tokens).unsqueeze(2), key = to_k_->forward(tokens).unsqueeze(2),
             value = to_v_->forward(tokens).unsqueeze(2);  // [B, H W, 1, C]
  const auto attended = rows.are_whole() ? attention_->forward(query, key, value)
                                         : rows.attended(attention_, query, key, value, x.size(3));
  auto y = to_out_->forward(attended.flatten(2));
  return added_to(in_fast_order(y.transpose(1, 2).unflatten(2, {x.size(2), x.size(3)})), x);
}

VaeMidBlockImpl::VaeMidBlockImpl(int64_t channels, const AutoencoderKLConfig& config,
                                 const nn::ParameterOptions& parameters)
    : first_(channels, channels, config.norm_num_groups, parameters),
      second_(channels, channels, config.norm_num_groups, parameters) {
  const auto resnets = register_module("resnets", torch::nn::ModuleList());
  resnets->push_back(first_);
  resnets->push_back(second_);
  if (!config.mid_block_add_attention) return;
  attention_ = VaeAttention(channels, config.norm_num_groups, parameters);
  register_module("attentions", torch::nn::ModuleList())->push_back(attention_);
}

at::Tensor VaeMidBlockImpl::forward(const at::Tensor& x, const PictureRows& rows) {
  auto y = first_->forward(x, rows);
  if (attention_) y = attention_->forward(y, rows);
  return second_->forward(y, rows);
}

VaeDownBlockImpl::VaeDownBlockImpl(int64_t in_channels, int64_t out_channels, bool halves,
                                   const AutoencoderKLConfig& config, const nn::ParameterOptions& parameters)
    : resnets_(register_module("resnets", torch::nn::ModuleList())) {
  for (int64_t i = 0; i < config.layers_per_block; ++i) {
    resnets_->push_back(
        VaeResnetBlock(i == 0 ? in_channels : out_channels, out_channels, config.norm_num_groups, parameters));
  }
  if (!halves) return;
  downsample_ = nn::Conv2d(out_channels, out_channels, 3, nn::Conv2dOptions{.stride = 2, .parameters = parameters});
  const auto downsampler = std::make_shared<torch::nn::Module>("Downsample2D");
  downsampler->register_module("conv", downsample_);
  register_module("downsamplers", torch::nn::ModuleList())->push_back(downsampler);
}

at::Tensor VaeDownBlockImpl::forward(at::Tensor x) {
  for (const auto& resnet : *resnets_) x = resnet->as<VaeResnetBlock>()->forward(x);
  // One row and column of zeros at the end only.
  return downsample_ ? downsample_->forward(at::constant_pad_nd(x, {0, 1, 0, 1})) : x;
}

VaeUpBlockImpl::VaeUpBlockImpl(int64_t in_channels, int64_t out_channels, bool doubles,
                               const AutoencoderKLConfig& config, const nn::ParameterOptions& parameters)
    : resnets_(register_module("resnets", torch::nn::ModuleList())) {
  for (int64_t i = 0; i < config.layers_per_block + 1; ++i) {
    resnets_->push_back(
        VaeResnetBlock(i == 0 ? in_channels : out_channels, out_channels, config.norm_num_groups, parameters));
  }
  if (!doubles) return;
  upsample_ = convolution(out_channels, out_channels, parameters);
  const auto upsampler = std::make_shared<torch::nn::Module>("Upsample2D");
  upsampler->register_module("conv", upsample_);
  register_module("upsamplers", torch::nn::ModuleList())->push_back(upsampler);
}

at::Tensor VaeUpBlockImpl::forward(at::Tensor x, const PictureRows& rows) {
  for (const auto& resnet : *resnets_) x = resnet->as<VaeResnetBlock>()->forward(x, rows);
  if (upsample_ && !rows.are_whole()) return rows.enlarged_and_convolved(upsample_, x);
  return upsample_ ? upsample_->forward(at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)})) : x;
}

VaeEncoderImpl::VaeEncoderImpl(const AutoencoderKLConfig& config, const nn::ParameterOptions& parameters)
    : conv_in_(
          register_module("conv_in", convolution(config.in_channels, config.block_out_channels.front(), parameters))),
      down_blocks_(register_module("down_blocks", torch::nn::ModuleList())),
      mid_block_(register_module("mid_block", VaeMidBlock(config.block_out_channels.back(), config, parameters))),
      conv_norm_out_(register_module("conv_norm_out",
                                     group_norm(config.norm_num_groups, config.block_out_channels.back(), parameters))),
      conv_out_(register_module(
          "conv_out", convolution(config.block_out_channels.back(), 2 * config.latent_channels, parameters))) {
  auto channels = config.block_out_channels.front();
  for (size_t level = 0; level < config.block_out_channels.size(); ++level) {
    const bool is_last = level + 1 == config.block_out_channels.size();
    down_blocks_->push_back(VaeDownBlock(channels, config.block_out_channels[level], !is_last, config, parameters));
    channels = config.block_out_channels[level];
  }
}

at::Tensor VaeEncoderImpl::forward(const at::Tensor& image) {
  auto x = conv_in_->forward(in_fast_order(image));
  for (const auto& block : *down_blocks_) x = block->as<VaeDownBlock>()->forward(x);
  x = mid_block_->forward(x);
  return conv_out_->forward(nn::silu(conv_norm_out_->forward(x)));
}

VaeDecoderImpl::VaeDecoderImpl(const AutoencoderKLConfig& config, const nn::ParameterOptions& parameters)
    : conv_in_(register_module("conv_in",
                               convolution(config.latent_channels, config.block_out_channels.back(), parameters))),
      mid_block_(register_module("mid_block", VaeMidBlock(config.block_out_channels.back(), config, parameters))),
      up_blocks_(register_module("up_blocks", torch::nn::ModuleList())),
      conv_norm_out_(register_module(
          "conv_norm_out", group_norm(config.norm_num_groups, config.block_out_channels.front(), parameters))),
      conv_out_(register_module("conv_out",
                                convolution(config.block_out_channels.front(), config.out_channels, parameters))) {
  auto channels = config.block_out_channels.back();
  for (size_t level = config.block_out_channels.size(); level-- > 0;) {
    up_blocks_->push_back(VaeUpBlock(channels, config.block_out_channels[level], level > 0, config, parameters));
    channels = config.block_out_channels[level];
  }
}

at::Tensor VaeDecoderImpl::forward(const at::Tensor& latents, const ProcessGroup& ranks) {
  PictureRows rows(latents.size(2), ranks);
  const auto own = in_fast_order(rows.own(latents));
  auto x = mid_block_->forward(rows.are_whole() ? conv_in_->forward(own) : rows.convolved(conv_in_, own), rows);
  for (const auto& block : *up_blocks_) {
    auto* up = block->as<VaeUpBlock>();
    x = up->forward(x, rows);
    if (up->doubles()) rows = rows.doubled();
  }
  return rows.gathered(activated_and_convolved(conv_norm_out_, conv_out_, x, rows));
}

}  // namespace pardiff
