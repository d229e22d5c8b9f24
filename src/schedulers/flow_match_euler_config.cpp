#include <pardiff/core/check.h>
#include <pardiff/schedulers/flow_match_euler.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace pardiff {
namespace {

constexpr int64_t kMostTimesteps = 1'000'000;
constexpr int64_t kMostTokens = int64_t{1} << 40;

void refuse_option(bool is_set, const char* key) {
  check<ConfigError>(!is_set, key, " is true, which this scheduler does not support. Set it to false.");
}

}  // namespace

FlowMatchEulerConfig FlowMatchEulerConfig::from_file(const ConfigFile& file) {
  file.expect_class({"FlowMatchEulerDiscreteScheduler"});
  FlowMatchEulerConfig config;
  config.num_train_timesteps = file.integer("num_train_timesteps", config.num_train_timesteps);
  config.shift = file.number("shift", config.shift);
  config.use_dynamic_shifting = file.boolean("use_dynamic_shifting", config.use_dynamic_shifting);
  config.base_shift = file.number("base_shift", config.base_shift);
  config.max_shift = file.number("max_shift", config.max_shift);
  config.base_image_seq_len = file.integer("base_image_seq_len", config.base_image_seq_len);
  config.max_image_seq_len = file.integer("max_image_seq_len", config.max_image_seq_len);
  config.invert_sigmas = file.boolean("invert_sigmas", config.invert_sigmas);
  if (file.has("shift_terminal")) config.shift_terminal = file.number("shift_terminal", 0);
  config.use_karras_sigmas = file.boolean("use_karras_sigmas", config.use_karras_sigmas);
  config.use_exponential_sigmas = file.boolean("use_exponential_sigmas", config.use_exponential_sigmas);
  config.use_beta_sigmas = file.boolean("use_beta_sigmas", config.use_beta_sigmas);
  config.time_shift_type = file.string("time_shift_type", config.time_shift_type);
  config.stochastic_sampling = file.boolean("stochastic_sampling", config.stochastic_sampling);
  try {
    config.validate();
  } catch (const ConfigError& error) {
    fail<CheckpointError>(file.origin(), ": ", error.what());
  }
  return config;
}

void FlowMatchEulerConfig::validate() const {
  check<ConfigError>(num_train_timesteps >= 1 && num_train_timesteps <= kMostTimesteps, "num_train_timesteps is ",
                     num_train_timesteps, ". Give a number from 1 to ", kMostTimesteps, ".");
  check<ConfigError>(std::isfinite(shift) && shift > 0, "shift is ", shift, ". Give a number above 0.");
  check<ConfigError>(std::isfinite(base_shift) && std::isfinite(max_shift), "base_shift is ", base_shift,
                     " and max_shift is ", max_shift, ". Give finite numbers.");
  check<ConfigError>(
      base_image_seq_len >= 0 && max_image_seq_len > base_image_seq_len && max_image_seq_len <= kMostTokens,
      "base_image_seq_len is ", base_image_seq_len, " and max_image_seq_len is ", max_image_seq_len,
      ". The second must be larger, and neither negative.");
  check<ConfigError>(time_shift_type == "exponential", "time_shift_type is \"", time_shift_type,
                     "\", which this scheduler does not support. Use \"exponential\".");
  check<ConfigError>(shift_terminal.value_or(0) == 0, "shift_terminal is ", shift_terminal.value_or(0),
                     ", which this scheduler does not support. Leave it out.");
  refuse_option(invert_sigmas, "invert_sigmas");
  refuse_option(use_karras_sigmas, "use_karras_sigmas");
  refuse_option(use_exponential_sigmas, "use_exponential_sigmas");
  refuse_option(use_beta_sigmas, "use_beta_sigmas");
  refuse_option(stochastic_sampling, "stochastic_sampling");
}

std::string FlowMatchEulerConfig::to_json() const {
  nlohmann::json json = {{"_class_name", "FlowMatchEulerDiscreteScheduler"},
                         {"base_image_seq_len", base_image_seq_len},
                         {"base_shift", base_shift},
                         {"invert_sigmas", invert_sigmas},
                         {"max_image_seq_len", max_image_seq_len},
                         {"max_shift", max_shift},
                         {"num_train_timesteps", num_train_timesteps},
                         {"shift", shift},
                         {"shift_terminal", nullptr},
                         {"stochastic_sampling", stochastic_sampling},
                         {"time_shift_type", time_shift_type},
                         {"use_beta_sigmas", use_beta_sigmas},
                         {"use_dynamic_shifting", use_dynamic_shifting},
                         {"use_exponential_sigmas", use_exponential_sigmas},
                         {"use_karras_sigmas", use_karras_sigmas}};
  if (shift_terminal) json["shift_terminal"] = *shift_terminal;
  return json.dump(2) + "\n";
}

}  // namespace pardiff
