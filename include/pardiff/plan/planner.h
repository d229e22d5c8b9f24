#pragma once
#include <c10/core/ScalarType.h>
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/parallel/config.h>
#include <pardiff/plan/machine.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pardiff::plan {

/// What is to be computed.
struct Work {
  FluxTransformerConfig transformer{};
  AutoencoderKLConfig vae{};
  /// Of the text encoders and the VAE, in elements; every rank holds them.
  int64_t other_parameters = 0;
  int64_t height = 1024, width = 1024;  // pixels
  int64_t text_tokens = 512;
  int64_t pictures = 1;
  bool true_guidance = false;  // two passes a step
  int64_t steps = 28;
  at::ScalarType dtype = at::kBFloat16;

  int64_t image_tokens() const;
};

/// Whose algorithms are priced: this library's, or those of diffusers 0.42 as published (the ring gathers all keys and
/// values at once, Ulysses makes 3 + 1 exchanges, every elementwise step is an operation of its own).
enum class Profile { kPardiff, kReference };

/// A step of the slowest rank, in seconds. The three add up.
struct StepTime {
  double compute = 0;   // products, attention and what lies between
  double exchange = 0;  // among ranks, where no computation hides it; with packing and merging
  double host = 0;      // the device waits for its host

  double total() const { return compute + exchange + host; }
};

/// The most that one rank holds, in bytes.
struct RankMemory {
  double weights = 0;  // of all parts, before the text encoders are released
  double working = 0;  // activations and buffers

  double total() const { return weights + working; }
};

struct Layout {
  ParallelConfig config{};
  /// Why it cannot run; empty if it can. In the words of the library's own checks, or of what memory lacks.
  std::string refusal{};
  /// Predictions; zero if the library refuses the layout.
  StepTime step{};
  RankMemory memory{};

  bool is_possible() const { return refusal.empty(); }
};

/// "ring 2 x ulysses 2, weights over ring and ulysses", "one rank"
std::string description(const ParallelConfig& config);
/// The flags of `pardiff generate` that ask for it: "--ring-degree 2 --ulysses-degree 2"
std::string generate_flags(const ParallelConfig& config);

/// Why a layout cannot run, in the words of the checks that `generate` makes; empty if it can. Memory is not looked at.
std::string why_refused(const Work& work, const ParallelConfig& config, int ranks, Profile profile = Profile::kPardiff);
/// Predicts a layout that `why_refused` lets pass. Throws: ConfigError for one that it does not.
StepTime step_time(const Work& work, const ParallelConfig& config, const Machine& machine, int ranks,
                   Profile profile = Profile::kPardiff);
RankMemory rank_memory(const Work& work, const ParallelConfig& config, int ranks, Profile profile = Profile::kPardiff);

/// Every way to lay out `ranks`: those that can run, fastest first (the lesser memory among equals), then the others.
/// A layout whose lengths or heads do not divide is also tried in its anything form.
std::vector<Layout> plan(const Work& work, const Machine& machine, int ranks, Profile profile = Profile::kPardiff);

/// `machine` with the one number changed that makes `config` take `seconds` a step: the rate of its link, unless that
/// would have to be under a quarter of what it is; then the host's time for an operation.
/// Throws: ConfigError if neither can explain the time.
Machine fitted(Machine machine, const Work& work, const ParallelConfig& config, int ranks, double seconds,
               Profile profile);

}  // namespace pardiff::plan
