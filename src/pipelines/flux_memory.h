#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/models/flux_transformer.h>

#include <cstdint>

namespace pardiff::flux {

/// What decides how much memory a call takes beside the weights.
struct Workload {
  int64_t pictures = 0;           // of the call
  int64_t pictures_at_once = 0;   // of one group of ranks
  int64_t height = 0, width = 0;  // pixels
  int64_t image_tokens = 0, text_tokens = 0;
  int64_t context_ranks = 1;    // that share the tokens
  int64_t decoding_ranks = 1;   // that share a picture's rows
  int64_t bytes_per_value = 4;  // of the activations
};

/// The least that a call can do with on one rank, in bytes; rough, and too low rather than too high.
double least_memory(const Workload& work, const FluxTransformerConfig& transformer, const AutoencoderKLConfig& vae);

/// Throws: ConfigError with the estimate if `least` bytes for every rank of this machine are more than it has. Ranks on
/// a GPU are not checked.
void check_memory(double least, const Workload& work, const World& world);

}  // namespace pardiff::flux
