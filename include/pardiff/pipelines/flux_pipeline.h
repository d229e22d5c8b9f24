#pragma once
#include <c10/core/ScalarType.h>
#include <pardiff/comm/world.h>
#include <pardiff/io/image.h>
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/models/save.h>
#include <pardiff/models/t5_encoder.h>
#include <pardiff/parallel/config.h>
#include <pardiff/pipelines/flux_inputs.h>
#include <pardiff/pipelines/flux_output.h>
#include <pardiff/pipelines/parallel_choice.h>
#include <pardiff/schedulers/flow_match_euler.h>
#include <pardiff/text/clip_tokenizer.h>
#include <pardiff/text/t5_tokenizer.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pardiff {

/// How a pipeline is loaded, and the parts that are not read from the folder because the caller has them.
struct FluxPipelineOptions {
  /// Unset: every part computes in the dtype of its file.
  std::optional<at::ScalarType> dtype{};
  /// "fp16" reads `<file>.fp16.safetensors`.
  std::string variant{};
  /// A single file with the transformer's weights, under diffusers' names or those of FLUX's first publication
  /// (flux1-dev.safetensors), instead of those in the folder; the folder's transformer/config.json says of which sizes.
  std::filesystem::path transformer_file{};
  /// Of a repository id: a branch, a tag or a commit.
  std::string revision = "main";
  /// Runs the transformer on several ranks, as transformer()->enable_parallelism does.
  ParallelChoice parallel_config{};
  /// Of the transformer; empty: the default.
  std::string attention_backend{};
  /// Keeps in memory what a call needs only for a while (the text encoders, the weights of the modulation); otherwise
  /// it is given back, and the next call reads it again.
  bool keep_loaded = false;

  FluxTransformer2DModel transformer{nullptr};
  AutoencoderKL vae{nullptr};
  ClipTextModel text_encoder{nullptr};
  T5EncoderModel text_encoder_2{nullptr};
  std::optional<ClipTokenizer> tokenizer{};
  std::optional<T5Tokenizer> tokenizer_2{};
  std::optional<FlowMatchEulerDiscreteScheduler> scheduler{};
};

/// What `generate` collects beyond the pictures. Must be equal on all ranks.
struct GenerateOptions {
  /// Latents after every step. Cost: one all_gather of the latents a step under context parallelism, counted in
  /// communication_total only.
  bool keep_latents = false;
  /// The transformer's inputs of the first step.
  bool keep_transformer_inputs = false;
  /// The transformer's outputs are not decoded: no pictures.
  bool skip_decode = false;
};

/// Text to picture with FLUX: two text encoders, the transformer, the scheduler and the VAE's decoder.
///
/// Every rank of the world makes the same calls with equal arguments. Without parallelism every rank computes all of
/// the denoising, and rank 0 decodes; else the ranks that have the same pictures share the rows of each in decoding.
/// Rank 0 alone has all pictures.
class FluxPipeline {
 public:
  /// Loads a pipeline from a folder in the diffusers layout, or from a repository id that is in the local Hugging Face
  /// cache. `world` must outlive the pipeline.
  /// Collective: if parallel_config is given.
  /// Cost: with keep_loaded all weights are read; otherwise those of the text encoders and the transformer by the first
  /// call, when it needs them. Parameters whose dtype is the file's stay in the mapped file; others are copied.
  /// Throws: CheckpointError for a file that is missing or damaged, found before any weights are read; ConfigError for
  /// parts that do not fit one another, or as Model::enable_parallelism.
  static FluxPipeline from_pretrained(const std::string& model, World& world, const FluxPipelineOptions& options = {});

  ~FluxPipeline();
  FluxPipeline(FluxPipeline&& other) noexcept;
  FluxPipeline& operator=(FluxPipeline&& other) noexcept;

  /// Makes the pictures: on rank 0 prompts x num_images_per_prompt of them, images of one prompt side by side; on
  /// other ranks none.
  /// Collective: every rank of the world, with equal inputs. Everything is checked before any communication.
  /// Precision: rounds where diffusers rounds; the noise is drawn by torch's CPU generator, so that equal seeds give
  /// diffusers' pictures.
  /// Throws: UsageError for inputs that mean nothing; ConfigError for a size that the parallelism cannot cut, or for
  /// which memory does not suffice, for fewer pictures than dp has groups, and for cfg without true guidance; CommError
  /// if ranks disagree.
  std::vector<Image> operator()(const FluxPipelineInputs& inputs);
  /// The same, with all that a report needs.
  FluxPipelineOutput generate(const FluxPipelineInputs& inputs, const GenerateOptions& options = {});
  /// What can be said of a call's inputs before anything is loaded: numbers in range, counts that fit one another,
  /// texts in UTF-8. Pure. Throws: UsageError.
  static void check_arguments(const FluxPipelineInputs& inputs);
  /// What a call and a layout must have in common, known before anything is loaded: at least as many pictures as dp has
  /// groups, and true guidance for cfg. Pure. Throws: ConfigError.
  static void check_layout(const FluxPipelineInputs& inputs, const ParallelConfig& config);
  /// Throws what `generate` would throw for these inputs before any communication. Pure; on data that every rank has.
  void check_inputs(const FluxPipelineInputs& inputs) const;

  /// What latents of a picture (packed and whole: [B, image_tokens, channels]) look like, small: they are averaged
  /// until the longer side has at most `side` pixels, then decoded. Of a picture of height x width pixels.
  /// Pure. Cost: that of decoding a picture of the small size.
  /// Throws: ShapeError if the latents are not of such a picture.
  std::vector<Image> preview(const at::Tensor& latents, int64_t height, int64_t width, int64_t side = 256) const;

  /// Writes all parts as a folder in the diffusers layout that FluxPipeline, here and there, loads: weights that tensor
  /// parallelism has cut are put together, and what this pipeline has no use for (the VAE's encoder) is copied from the
  /// files it was loaded from. `folder` must not exist, or be empty; it appears whole or not at all.
  /// Collective: every rank of the world, with equal arguments. Rank 0 writes; the others return when it is done.
  /// Cost: as save_parameters; memory of one whole parameter.
  /// Throws: on every rank with one text: UsageError for a shard size that is not positive; CheckpointError if the
  /// folder holds files, or one cannot be read or written; ConfigError for a VAE that the caller brought along without
  /// its encoder.
  void save_pretrained(const std::filesystem::path& folder, const SaveOptions& options = {}) const;

  /// With all of its weights, which are read if need be. A model that was changed keeps its weights from then on.
  FluxTransformer2DModel transformer() const;
  AutoencoderKL vae() const;
  const FlowMatchEulerDiscreteScheduler& scheduler() const;
  /// Pixels that height and width are rounded down to a multiple of.
  int64_t size_multiple() const;

 private:
  struct State;
  explicit FluxPipeline(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pardiff
