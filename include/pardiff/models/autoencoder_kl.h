#pragma once
#include <pardiff/comm/process_group.h>
#include <pardiff/io/config_file.h>
#include <pardiff/models/load.h>
#include <pardiff/models/model.h>
#include <pardiff/nn/convolution.h>
#include <pardiff/nn/parameter.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <vector>

namespace pardiff {

/// config.json of a VAE, with the names and defaults of diffusers.
struct AutoencoderKLConfig {
  int64_t in_channels = 3;
  int64_t out_channels = 3;
  /// One entry per level. Only DownEncoderBlock2D and UpDecoderBlock2D are supported.
  std::vector<std::string> down_block_types = {"DownEncoderBlock2D"};
  std::vector<std::string> up_block_types = {"UpDecoderBlock2D"};
  std::vector<int64_t> block_out_channels = {64};
  int64_t layers_per_block = 1;
  std::string act_fn = "silu";
  int64_t latent_channels = 4;
  int64_t norm_num_groups = 32;
  int64_t sample_size = 32;  // not used by this model; kept for the file
  double scaling_factor = 0.18215;
  double shift_factor = 0;   // null in a file is 0
  bool force_upcast = true;  // not used by this model, which computes in its own dtype; kept for the file
  bool use_quant_conv = true;
  bool use_post_quant_conv = true;
  bool mid_block_add_attention = true;

  /// Throws: CheckpointError for a value of the wrong type, or one that `validate` refuses.
  static AutoencoderKLConfig from_file(const ConfigFile& file);
  /// What diffusers reads back.
  std::string to_json() const;
  /// Throws: ConfigError for sizes that do not fit one another, or a block type or activation that is not supported
  /// (the message lists those that are).
  void validate() const;

  /// Pixels of the picture per latent, along one side.
  int64_t scale_factor() const { return int64_t{1} << (block_out_channels.size() - 1); }
};

/// What a VAE holds. A part that is left out has no parameters, and its tensors in a checkpoint are passed over.
enum class AutoencoderParts { kAll, kDecoder, kEncoder };

/// A normal distribution for each latent value.
/// Shapes: both [B, latent_channels, height, width].
struct LatentDistribution {
  at::Tensor mean;
  at::Tensor logvar;  // within -30..20

  /// mean + exp(logvar / 2) noise. Shapes: noise as mean.
  at::Tensor sample(const at::Tensor& noise) const;
};

class VaeEncoderImpl;
class VaeDecoderImpl;

/// The variational autoencoder between pictures and latents.
class AutoencoderKLImpl : public Model {
 public:
  /// Throws: ConfigError as AutoencoderKLConfig::validate.
  explicit AutoencoderKLImpl(const AutoencoderKLConfig& config, const nn::ParameterOptions& parameters = {},
                             AutoencoderParts parts = AutoencoderParts::kAll);

  /// A picture, about -1..1, from latents as `unscaled` returns them.
  /// Shapes: latents [B, latent_channels, h, w]; returns [B, out_channels, f h, f w], f = config().scale_factor().
  /// With several `ranks` each decodes its rows of the picture, exactly as one rank would: convolutions see the
  /// neighbours' rows, norms the whole picture, and the attention every position. Latents must be equal on all of them,
  /// and the picture is whole on each. No gradient is recorded then. Collective: `ranks`.
  /// Throws: ShapeError; ConfigError without the decoder.
  /// Source: Rombach et al. 2022, arXiv 2112.10752.
  at::Tensor decode(const at::Tensor& latents, const ProcessGroup& ranks = {});
  /// Shapes: image [B, in_channels, H, W], values in -1..1; returns distributions [B, latent_channels, H/f, W/f], with
  /// sizes rounded down.
  /// Throws: ShapeError; ConfigError without the encoder.
  LatentDistribution encode(const at::Tensor& image);

  /// latents / scaling_factor + shift_factor: from what the transformer works on to what `decode` takes.
  at::Tensor unscaled(const at::Tensor& latents) const;
  /// (latents - shift_factor) scaling_factor: from a sample of `encode` to what the transformer works on.
  at::Tensor scaled(const at::Tensor& latents) const;

  const AutoencoderKLConfig& config() const { return config_; }
  std::string class_name() const override { return "AutoencoderKL"; }
  /// Throws: ConfigError without the encoder or the decoder, since a config cannot say so.
  std::string config_json() const override;
  /// Passes over the parts that this model leaves out, and accepts the attention's names of older files.
  LoadOptions load_options(std::optional<at::ScalarType> dtype = {}) const;

 private:
  AutoencoderKLConfig config_;
  std::shared_ptr<VaeEncoderImpl> encoder_;
  std::shared_ptr<VaeDecoderImpl> decoder_;
  nn::Conv2d quant_conv_{nullptr}, post_quant_conv_{nullptr};
};
TORCH_MODULE(AutoencoderKL);

}  // namespace pardiff
