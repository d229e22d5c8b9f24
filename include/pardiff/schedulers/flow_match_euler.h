#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/io/config_file.h>

#include <optional>
#include <string>
#include <vector>

namespace pardiff {

/// scheduler/scheduler_config.json, with the reference's names, order and defaults.
struct FlowMatchEulerConfig {
  int64_t num_train_timesteps = 1000;
  double shift = 1.0;  // of every sigma; ignored under dynamic shifting
  bool use_dynamic_shifting = false;
  double base_shift = 0.5;
  double max_shift = 1.15;
  int64_t base_image_seq_len = 256;
  int64_t max_image_seq_len = 4096;
  bool invert_sigmas = false;
  std::optional<double> shift_terminal{};
  bool use_karras_sigmas = false;
  bool use_exponential_sigmas = false;
  bool use_beta_sigmas = false;
  std::string time_shift_type = "exponential";
  bool stochastic_sampling = false;

  /// Throws: CheckpointError that names the file and the key, also for what is not supported.
  static FlowMatchEulerConfig from_file(const ConfigFile& file);
  /// Throws: ConfigError for a value out of range or an option that is not supported.
  void validate() const;
  /// As diffusers writes it.
  std::string to_json() const;
};

struct TimestepOptions {
  /// The shift of a picture of this many (packed) tokens, under dynamic shifting.
  std::optional<int64_t> image_seq_len{};
  /// The shift itself.
  std::optional<double> mu{};
  /// Instead of evenly spaced ones; they are shifted like those.
  std::vector<double> sigmas{};
};

/// Euler steps along the straight line from noise (sigma 1) to picture (sigma 0).
/// Source: Esser et al. 2024, arXiv 2403.03206.
class FlowMatchEulerDiscreteScheduler {
 public:
  /// Starts with the table of all training timesteps, in which a static shift is applied and a dynamic one is not.
  /// Throws: ConfigError if the config is not valid or not supported.
  explicit FlowMatchEulerDiscreteScheduler(const FlowMatchEulerConfig& config = {});

  /// Chooses `steps` timesteps: evenly spaced sigmas from 1 to 1/steps, or the given ones, shifted; then 0.
  /// Precision: spacing in float64, shifting in float32.
  /// Throws: UsageError for fewer than one step or sigmas that do not fit; ConfigError if dynamic shifting is on and
  /// neither or both of image_seq_len and mu are given.
  void set_timesteps(int64_t steps, const TimestepOptions& options = {});

  /// The logarithm of the dynamic shift's factor: linear in the number of tokens.
  double mu(int64_t image_seq_len) const;

  /// Shapes: [steps + 1], float32, the last one 0 (the training table has no such end).
  const at::Tensor& sigmas() const { return sigmas_; }
  /// Shapes: [steps], float32, num_train_timesteps times the sigmas.
  const at::Tensor& timesteps() const { return timesteps_; }

  /// The sample after step `index`: sample + (sigma[index + 1] - sigma[index]) model_output.
  /// Shapes: model_output and sample alike, any; returns the same.
  /// Precision: the difference of the sigmas and the product are rounded to model_output's dtype, as the reference does
  /// on a CPU; the sum is float32, the result has model_output's dtype.
  /// Throws: UsageError unless 0 <= index < steps.
  at::Tensor step(const at::Tensor& model_output, int64_t index, const at::Tensor& sample) const;

  const FlowMatchEulerConfig& config() const { return config_; }

 private:
  float shifted(float sigma, double mu) const;

  FlowMatchEulerConfig config_;
  at::Tensor sigmas_, timesteps_;
};

}  // namespace pardiff
