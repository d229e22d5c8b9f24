#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/attention/attention.h>
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/nn/convolution.h>
#include <pardiff/nn/linear.h>
#include <pardiff/nn/norm.h>
#include <pardiff/nn/parameter.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include "models/picture_rows.h"

namespace pardiff {

// Where a forward takes PictureRows, its tensors are this rank's share of the rows.

// x + conv2(silu(norm2(conv1(silu(norm1(x)))))), with a 1x1 convolution of x where the channels differ.
// Shapes: [B, in_channels, H, W] -> [B, out_channels, H, W].
class VaeResnetBlockImpl : public torch::nn::Module {
 public:
  VaeResnetBlockImpl(int64_t in_channels, int64_t out_channels, int64_t groups, const nn::ParameterOptions& parameters);

  at::Tensor forward(const at::Tensor& x, const PictureRows& rows = {});

 private:
  nn::GroupNorm norm1_, norm2_;
  nn::Conv2d conv1_, conv2_, conv_shortcut_{nullptr};
};
TORCH_MODULE(VaeResnetBlock);

// One head of attention over all positions, with a residual. Shapes: [B, C, H, W] -> the same.
class VaeAttentionImpl : public torch::nn::Module {
 public:
  VaeAttentionImpl(int64_t channels, int64_t groups, const nn::ParameterOptions& parameters);

  at::Tensor forward(const at::Tensor& x, const PictureRows& rows = {});

 private:
  nn::GroupNorm group_norm_;
  nn::Linear to_q_, to_k_, to_v_, to_out_;
  Attention attention_;
};
TORCH_MODULE(VaeAttention);

// A resnet, an attention if asked for, a resnet.
class VaeMidBlockImpl : public torch::nn::Module {
 public:
  VaeMidBlockImpl(int64_t channels, const AutoencoderKLConfig& config, const nn::ParameterOptions& parameters);

  at::Tensor forward(const at::Tensor& x, const PictureRows& rows = {});

 private:
  VaeResnetBlock first_, second_;
  VaeAttention attention_{nullptr};
};
TORCH_MODULE(VaeMidBlock);

// Some resnets, then (on all levels but the last) half the width and height. Shapes: [B, in, H, W] -> [B, out, H/2,
// W/2].
class VaeDownBlockImpl : public torch::nn::Module {
 public:
  VaeDownBlockImpl(int64_t in_channels, int64_t out_channels, bool halves, const AutoencoderKLConfig& config,
                   const nn::ParameterOptions& parameters);

  at::Tensor forward(at::Tensor x);

 private:
  torch::nn::ModuleList resnets_;
  nn::Conv2d downsample_{nullptr};
};
TORCH_MODULE(VaeDownBlock);

// Some resnets, then (on all levels but the last) twice the width and height. Shapes: [B, in, H, W] -> [B, out, 2H,
// 2W].
class VaeUpBlockImpl : public torch::nn::Module {
 public:
  VaeUpBlockImpl(int64_t in_channels, int64_t out_channels, bool doubles, const AutoencoderKLConfig& config,
                 const nn::ParameterOptions& parameters);

  at::Tensor forward(at::Tensor x, const PictureRows& rows);
  bool doubles() const { return !upsample_.is_empty(); }

 private:
  torch::nn::ModuleList resnets_;
  nn::Conv2d upsample_{nullptr};
};
TORCH_MODULE(VaeUpBlock);

// Shapes: [B, in_channels, f h, f w] -> [B, 2 latent_channels, h, w].
class VaeEncoderImpl : public torch::nn::Module {
 public:
  VaeEncoderImpl(const AutoencoderKLConfig& config, const nn::ParameterOptions& parameters);

  at::Tensor forward(const at::Tensor& image);

 private:
  nn::Conv2d conv_in_;
  torch::nn::ModuleList down_blocks_;
  VaeMidBlock mid_block_;
  nn::GroupNorm conv_norm_out_;
  nn::Conv2d conv_out_;
};

// Shapes: [B, latent_channels, h, w] -> [B, out_channels, f h, f w].
class VaeDecoderImpl : public torch::nn::Module {
 public:
  VaeDecoderImpl(const AutoencoderKLConfig& config, const nn::ParameterOptions& parameters);

  // The picture, whole on every rank of `ranks`; several take one picture at a time.
  at::Tensor forward(const at::Tensor& latents, const ProcessGroup& ranks);

 private:
  nn::Conv2d conv_in_;
  VaeMidBlock mid_block_;
  torch::nn::ModuleList up_blocks_;
  nn::GroupNorm conv_norm_out_;
  nn::Conv2d conv_out_;
};

}  // namespace pardiff
