#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/schedulers/flow_match_euler.h>

#include <cmath>

namespace pardiff {
namespace {

constexpr int64_t kMostSteps = 1'000'000;

std::vector<double> evenly_spaced(int64_t steps) {
  const double last = 1.0 / static_cast<double>(steps);
  std::vector<double> sigmas(steps, 1.0);
  for (int64_t i = 1; i < steps; ++i) {
    sigmas[i] = i == steps - 1 ? last : 1.0 + static_cast<double>(i) * ((last - 1.0) / static_cast<double>(steps - 1));
  }
  return sigmas;
}

}  // namespace

FlowMatchEulerDiscreteScheduler::FlowMatchEulerDiscreteScheduler(const FlowMatchEulerConfig& config) : config_(config) {
  config_.validate();
  const auto count = static_cast<float>(config_.num_train_timesteps);
  const auto shift = static_cast<float>(config_.shift), above = static_cast<float>(config_.shift - 1.0);
  sigmas_ = at::arange(config_.num_train_timesteps, 0, -1, at::kFloat) / count;
  if (!config_.use_dynamic_shifting) sigmas_ = sigmas_ * shift / (sigmas_ * above + 1.0f);
  timesteps_ = sigmas_ * count;
}

double FlowMatchEulerDiscreteScheduler::mu(int64_t image_seq_len) const {
  const double slope = (config_.max_shift - config_.base_shift) /
                       static_cast<double>(config_.max_image_seq_len - config_.base_image_seq_len);
  const double offset = config_.base_shift - slope * static_cast<double>(config_.base_image_seq_len);
  return static_cast<double>(image_seq_len) * slope + offset;
}

// In float32 throughout, with the constants rounded to it, as the reference's arrays are.
float FlowMatchEulerDiscreteScheduler::shifted(float sigma, double mu) const {
  if (!config_.use_dynamic_shifting) {
    return static_cast<float>(config_.shift) * sigma / (1.0f + static_cast<float>(config_.shift - 1.0) * sigma);
  }
  const auto factor = static_cast<float>(std::exp(mu));
  return factor / (factor + (1.0f / sigma - 1.0f));
}

void FlowMatchEulerDiscreteScheduler::set_timesteps(int64_t steps, const TimestepOptions& options) {
  check<UsageError>(steps >= 1 && steps <= kMostSteps, "the number of steps is ", steps, ". Give a number from 1 to ",
                    kMostSteps, ".");
  check<UsageError>(options.sigmas.empty() || static_cast<int64_t>(options.sigmas.size()) == steps, "there are ",
                    options.sigmas.size(), " sigmas for ", steps, " steps. Give one for each step.");
  for (const double sigma : options.sigmas) {
    check<UsageError>(std::isfinite(sigma) && sigma > 0, "a sigma is ", sigma, ". Give numbers above 0.");
  }
  double shift = 0;
  if (config_.use_dynamic_shifting) {
    check<ConfigError>(options.mu.has_value() != options.image_seq_len.has_value(),
                       "this scheduler shifts by the picture's size (use_dynamic_shifting), and ",
                       options.mu ? "both mu and image_seq_len are" : "neither mu nor image_seq_len is",
                       " given. Give one of them.");
    shift = options.mu ? *options.mu : mu(*options.image_seq_len);
    check<ConfigError>(std::isfinite(std::exp(shift)), "mu is ", shift,
                       ", whose exponential is not finite. Give a small number.");
  }
  const auto even = options.sigmas.empty() ? evenly_spaced(steps) : options.sigmas;
  auto sigmas = at::zeros({steps + 1}, at::kFloat);
  auto* data = sigmas.data_ptr<float>();
  for (int64_t i = 0; i < steps; ++i) data[i] = shifted(static_cast<float>(even[i]), shift);
  timesteps_ = sigmas.narrow(0, 0, steps) * static_cast<float>(config_.num_train_timesteps);
  sigmas_ = std::move(sigmas);
}

at::Tensor FlowMatchEulerDiscreteScheduler::step(const at::Tensor& model_output, int64_t index,
                                                 const at::Tensor& sample) const {
  check<UsageError>(index >= 0 && index + 1 < sigmas_.size(0), "step ", index, " of ", timesteps_.size(0),
                    " timesteps does not exist. Call set_timesteps first and count from 0.");
  // A tensor of no dimensions leaves the product in model_output's dtype: in bfloat16 it is rounded before the sum. As
  // the first factor it is itself rounded on a CPU, as in the reference; as the second it would not be.
  const auto apart = sigmas_[index + 1] - sigmas_[index];
  return (sample.to(at::kFloat) + apart * model_output).to(model_output.scalar_type());
}

}  // namespace pardiff
