#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/schedulers/flow_match_euler.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/golden.h"

namespace pardiff {
namespace {

FlowMatchEulerConfig parsed(const std::string& json) {
  return FlowMatchEulerConfig::from_file(ConfigFile::parse(json, "scheduler_config.json"));
}

std::string message_of(const std::string& json) {
  try {
    parsed(json);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

at::Tensor as_tensor(const nlohmann::json& values) {
  return at::tensor(values.get<std::vector<double>>(), at::kDouble);
}

TEST(FlowMatchEuler, MatchesTheReferenceTables) {
  const auto cases = nlohmann::json::parse(std::ifstream(testing::data_path("golden/scheduler.json")));
  ASSERT_EQ(cases.size(), 36u);
  for (const auto& expected : cases) {
    FlowMatchEulerDiscreteScheduler scheduler(parsed(expected.at("config").dump()));
    const auto tokens = expected.at("image_seq_len").get<int64_t>();
    const auto steps = expected.at("steps").get<int64_t>();
    SCOPED_TRACE(expected.at("config").dump() + " steps " + std::to_string(steps) + " tokens " +
                 std::to_string(tokens));
    EXPECT_NEAR(scheduler.mu(tokens), expected.at("mu").get<double>(), 1e-12);
    scheduler.set_timesteps(steps, {.image_seq_len = tokens});
    EXPECT_LE(testing::absolute_error(scheduler.sigmas(), as_tensor(expected.at("sigmas"))), 1e-6);
    EXPECT_LE(testing::relative_error(scheduler.timesteps(), as_tensor(expected.at("timesteps"))), 1e-6);
  }
}

TEST(FlowMatchEuler, ShiftsByTheNumberOfPackedTokens) {
  const FlowMatchEulerDiscreteScheduler scheduler;
  EXPECT_NEAR(scheduler.mu(256), 0.5, 1e-12);
  EXPECT_NEAR(scheduler.mu(1024), 0.63, 1e-12);
  EXPECT_NEAR(scheduler.mu(3969), 1.1285, 5e-5);
  EXPECT_NEAR(scheduler.mu(4096), 1.15, 1e-12);
  EXPECT_NEAR(scheduler.mu(16384), 1.15 + 0.65 * 12288 / 3840, 1e-12);
}

TEST(FlowMatchEuler, ShiftsSigmasOfTheUserToo) {
  FlowMatchEulerDiscreteScheduler scheduler({.shift = 3.0});
  scheduler.set_timesteps(2, {.sigmas = {0.75, 0.25}});
  EXPECT_LE(testing::absolute_error(scheduler.sigmas(), at::tensor({0.9, 0.5, 0.0}, at::kDouble)), 1e-7);
  EXPECT_LE(testing::absolute_error(scheduler.timesteps(), at::tensor({900.0, 500.0}, at::kDouble)), 1e-4);
}

TEST(FlowMatchEuler, TakesTheShiftItself) {
  FlowMatchEulerDiscreteScheduler by_mu({.use_dynamic_shifting = true}), by_tokens({.use_dynamic_shifting = true});
  by_mu.set_timesteps(5, {.mu = 0.63});
  by_tokens.set_timesteps(5, {.image_seq_len = 1024});
  EXPECT_LE(testing::absolute_error(by_mu.sigmas(), by_tokens.sigmas()), 1e-7);
}

TEST(FlowMatchEuler, IgnoresTheStaticShiftUnderDynamicShifting) {
  FlowMatchEulerDiscreteScheduler one({.shift = 1.0, .use_dynamic_shifting = true});
  FlowMatchEulerDiscreteScheduler three({.shift = 3.0, .use_dynamic_shifting = true});
  EXPECT_TRUE(at::equal(one.sigmas(), three.sigmas()));
  one.set_timesteps(4, {.mu = 1.15});
  three.set_timesteps(4, {.mu = 1.15});
  EXPECT_TRUE(at::equal(one.sigmas(), three.sigmas()));
}

TEST(FlowMatchEuler, StartsWithTheTrainingTable) {
  const FlowMatchEulerDiscreteScheduler plain, dynamic({.shift = 3.0, .use_dynamic_shifting = true}),
      shifted({.shift = 3.0});
  for (const int64_t i : {0, 1, 499, 999}) {
    const double sigma = (1000.0 - static_cast<double>(i)) / 1000;
    EXPECT_NEAR(plain.sigmas()[i].item<double>(), sigma, 1e-7);
    EXPECT_NEAR(plain.timesteps()[i].item<double>(), 1000 * sigma, 1e-4);
    EXPECT_NEAR(dynamic.sigmas()[i].item<double>(), sigma, 1e-7);
    EXPECT_NEAR(shifted.sigmas()[i].item<double>(), 3 * sigma / (1 + 2 * sigma), 1e-6);
  }
}

TEST(FlowMatchEuler, StepsAlongTheVelocity) {
  FlowMatchEulerDiscreteScheduler scheduler;
  scheduler.set_timesteps(4);
  const auto noise = at::randn({2, 3, 5}), picture = at::randn({2, 3, 5});
  auto sample = noise;
  for (int64_t i = 0; i < 4; ++i) sample = scheduler.step(noise - picture, i, sample);
  EXPECT_LE(testing::absolute_error(sample, picture), 1e-6);
}

// The reference's dt * v, with dt a tensor of no dimensions: seen to round dt and the product, and not the sum.
TEST(FlowMatchEuler, RoundsTheProductButNotTheSumInBfloat16) {
  FlowMatchEulerDiscreteScheduler scheduler;
  scheduler.set_timesteps(3);
  const auto velocity = at::randn({4096}).to(at::kBFloat16), sample = at::randn({4096}).to(at::kBFloat16);
  const auto wide_velocity = velocity.to(at::kFloat), wide_sample = sample.to(at::kFloat);
  const auto apart = (scheduler.sigmas()[1] - scheduler.sigmas()[0]).to(at::kBFloat16).to(at::kFloat);
  const auto rounded = (wide_velocity * apart).to(at::kBFloat16).to(at::kFloat);
  const auto stepped = scheduler.step(velocity, 0, sample);
  EXPECT_EQ(stepped.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(stepped, (wide_sample + rounded).to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(stepped, (wide_sample + wide_velocity * apart).to(at::kBFloat16)));
}

TEST(FlowMatchEuler, KeepsAFloatSampleWideUntilTheEndOfTheStep) {
  FlowMatchEulerDiscreteScheduler scheduler;
  scheduler.set_timesteps(2);
  const auto sample = at::randn({64}), velocity = at::zeros({64}, at::kBFloat16);
  EXPECT_TRUE(at::equal(scheduler.step(velocity, 0, sample), sample.to(at::kBFloat16)));
}

TEST(FlowMatchEuler, RefusesWhatItDoesNotSupport) {
  for (const std::string option :
       {"invert_sigmas", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "stochastic_sampling"}) {
    const auto message = message_of("{\"" + option + "\": true}");
    EXPECT_NE(message.find(option), std::string::npos) << message;
    EXPECT_NE(message.find("scheduler_config.json"), std::string::npos) << message;
    EXPECT_EQ(message_of("{\"" + option + "\": false}"), "");
  }
  EXPECT_NE(message_of(R"({"time_shift_type": "linear"})").find("linear"), std::string::npos);
  EXPECT_NE(message_of(R"({"shift_terminal": 0.1})").find("shift_terminal is 0.1"), std::string::npos);
  EXPECT_EQ(message_of(R"({"shift_terminal": null})"), "");
  EXPECT_NE(message_of(R"({"shift": 0})").find("shift is 0"), std::string::npos);
  EXPECT_NE(message_of(R"({"num_train_timesteps": 0})").find("num_train_timesteps is 0"), std::string::npos);
  EXPECT_NE(message_of(R"({"max_image_seq_len": 256})").find("max_image_seq_len is 256"), std::string::npos);
}

TEST(FlowMatchEuler, RefusesStepsThatMeanNothing) {
  FlowMatchEulerDiscreteScheduler plain, dynamic({.use_dynamic_shifting = true});
  EXPECT_THROW(plain.set_timesteps(0), UsageError);
  EXPECT_THROW(plain.set_timesteps(-3), UsageError);
  EXPECT_THROW(plain.set_timesteps(3, {.sigmas = {1.0, 0.5}}), UsageError);
  EXPECT_THROW(plain.set_timesteps(2, {.sigmas = {1.0, 0.0}}), UsageError);
  EXPECT_THROW(plain.set_timesteps(1, {.sigmas = {std::nan("")}}), UsageError);
  EXPECT_THROW(dynamic.set_timesteps(4), ConfigError);
  EXPECT_THROW(dynamic.set_timesteps(4, {.image_seq_len = 64, .mu = 0.5}), ConfigError);
  EXPECT_THROW(dynamic.set_timesteps(4, {.mu = 1e9}), ConfigError);
  plain.set_timesteps(2);
  const auto sample = at::zeros({3});
  EXPECT_THROW(plain.step(sample, 2, sample), UsageError);
  EXPECT_THROW(plain.step(sample, -1, sample), UsageError);
}

TEST(FlowMatchEuler, ConfigReadsWhatItWrote) {
  const FlowMatchEulerConfig config{
      .num_train_timesteps = 500, .shift = 2.5, .use_dynamic_shifting = true, .base_shift = 0.25, .max_shift = 2};
  const auto again = parsed(config.to_json());
  EXPECT_EQ(again.to_json(), config.to_json());
  EXPECT_EQ(again.num_train_timesteps, 500);
  EXPECT_EQ(again.max_shift, 2);
  const auto shapes = FlowMatchEulerConfig::from_file(
      ConfigFile::open(testing::model_path("flux-shapes/scheduler/scheduler_config.json")));
  EXPECT_TRUE(shapes.use_dynamic_shifting);
  EXPECT_EQ(shapes.shift, 3.0);
}

}  // namespace
}  // namespace pardiff
