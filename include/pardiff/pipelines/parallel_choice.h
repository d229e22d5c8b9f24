#pragma once
#include <pardiff/parallel/config.h>

#include <optional>

namespace pardiff {

/// Whichever config a caller has at hand: `.parallel_config = ContextParallelConfig{.ring_degree = 2}`.
class ParallelChoice {
 public:
  /// No parallelism.
  ParallelChoice() = default;
  ParallelChoice(const ParallelConfig& config) : config_(config) {}  // NOLINT(google-explicit-constructor)
  ParallelChoice(const ContextParallelConfig& config)                // NOLINT(google-explicit-constructor)
      : config_(ParallelConfig{.context_parallel_config = config}) {}
  ParallelChoice(const TensorParallelConfig& config)  // NOLINT(google-explicit-constructor)
      : config_(ParallelConfig{.tensor_parallel_config = config}) {}

  const std::optional<ParallelConfig>& config() const { return config_; }

 private:
  std::optional<ParallelConfig> config_;
};

}  // namespace pardiff
