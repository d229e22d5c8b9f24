#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/io/image.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pardiff {

/// Where the time went. `load` is from_pretrained's, plus whatever had to be loaded again for this call.
struct PipelineSeconds {
  double load = 0;
  double encode = 0;
  double prepare = 0;
  double denoise = 0;
  double decode = 0;
};

/// The bytes of a rank's parameters.
struct ParameterBytes {
  int64_t total = 0;
  /// Those in memory of this process alone, or on its device. The rest lies in mapped checkpoint files, which all
  /// processes of a machine share.
  int64_t private_bytes = 0;

  ParameterBytes& operator+=(const ParameterBytes& other);
};

/// Pictures, and everything a report about their making needs.
struct FluxPipelineOutput {
  /// In the order prompt 0 image 0, prompt 0 image 1, ...; empty except on rank 0.
  std::vector<Image> images{};
  /// The same before rounding to 8 bits: [B, 3, height, width], float32 in 0..1, on the CPU; undefined except on rank
  /// 0.
  at::Tensor image{};
  /// Packed latents [B, image_tokens, channels] after each step, whole, on the CPU; only if asked for.
  std::vector<at::Tensor> latents{};
  /// [prompts, length], int64; undefined if embeddings were given instead of prompts.
  at::Tensor clip_token_ids{}, t5_token_ids{};
  /// The transformer's inputs of the first step, whole, on the CPU; only if asked for. Names are those of
  /// FluxTransformerInputs. Under cfg they are those of the pass that this rank runs.
  std::map<std::string, at::Tensor> transformer_inputs{};

  /// One for the batch, or one per picture as they were given; empty if latents were given.
  std::vector<int64_t> seeds{};
  /// What the pictures have after rounding.
  int64_t height = 0, width = 0;
  int64_t num_inference_steps = 0;

  PipelineSeconds seconds{};
  std::vector<double> step_seconds{};  // of this rank
  /// What this rank sent in the denoising loop, and in the whole call with all that came before it (loading included).
  std::map<std::string, OperationCount> communication{}, communication_total{};
  /// SHA-256, in hex, of the whole latents that the first step starts from. Equal on all ranks.
  std::string latents_sha256{};
  /// Of all parts, as far as they were in memory when the first step began: without keep_loaded the text encoders and
  /// the weights of the modulation are gone by then.
  ParameterBytes parameters{};
  /// Of the transformer alone: what this rank keeps, and the most it held at once. They differ where weights are
  /// sharded over ranks, whose blocks are gathered for their use.
  int64_t transformer_parameter_bytes = 0, peak_transformer_parameter_bytes = 0;
  /// Of the transformer's files: what this rank has copied out of their mapping since they were opened. A weight that is
  /// used whole and in the files' dtype is not copied.
  int64_t transformer_bytes_copied = 0;
  /// Peak bytes of other ranks' keys and values held at once by this rank.
  int64_t peak_remote_kv_bytes = 0;
};

}  // namespace pardiff
