#pragma once
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/models/t5_encoder.h>
#include <pardiff/schedulers/flow_match_euler.h>

#include <string>
#include <vector>

namespace pardiff::cli {

/// The configurations of a whole FLUX checkpoint.
struct FluxConfigs {
  FluxTransformerConfig transformer;
  ClipTextConfig text_encoder;
  T5Config text_encoder_2;
  AutoencoderKLConfig vae;
  FlowMatchEulerConfig scheduler;

  /// Throws: ConfigError for parts that do not fit one another.
  void validate() const;
};

/// "flux-dev", "flux-schnell", "bench"
std::vector<std::string> preset_names();

/// A preset's name, a folder in the diffusers layout (its weights are not needed), or a JSON file with an object for
/// each part. Throws: UsageError if it is neither; CheckpointError for a damaged config; ConfigError as `validate`.
FluxConfigs flux_configs(const std::string& preset_or_config);

}  // namespace pardiff::cli
