// Ranks share the rows of a picture in decoding, and decode what one rank would.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/models/autoencoder_kl.h>

#include <string>
#include <vector>

#include "parity/parts/golden_part.h"
#include "support/golden.h"
#include "support/on_threads.h"

namespace pardiff::testing {
namespace {

// The latents' values need not be a picture's.
at::Tensor latents_of(const AutoencoderKLConfig& config, int64_t pictures, int64_t height, int64_t width) {
  const int64_t count = pictures * config.latent_channels * height * width;
  return (at::arange(count, at::kFloat) * 0.7).sin().view({pictures, config.latent_channels, height, width}) * 2;
}

AutoencoderKL model_of(const GoldenPart& part, at::ScalarType dtype = at::kFloat) {
  return part.load<AutoencoderKL>(AutoencoderKLConfig::from_file(part.config()), dtype);
}

class SharedDecoding : public ::testing::TestWithParam<std::string> {};

// Heights that ranks divide, that they do not, and with fewer rows than ranks.
TEST_P(SharedDecoding, GivesThePictureOfOneRank) {
  const at::NoGradGuard no_grad;
  const GoldenPart part(GetParam());
  auto alone = model_of(part);
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t height : {1, 2, 3, 5, 8}) {
      const auto latents = latents_of(alone->config(), 2, height, 5);
      const auto expected = alone->decode(latents);
      on_threads(ranks, [&](World& world) {
        const at::NoGradGuard none;
        auto model = model_of(part);
        const auto shared = model->decode(latents, world.group());
        EXPECT_EQ(shared.sizes(), expected.sizes());
        EXPECT_LE(relative_error(shared, expected), 1e-5) << ranks << " ranks, height " << height;
        EXPECT_TRUE(at::equal(model->decode(latents), expected));  // and alone as ever
        EXPECT_FALSE(shared.requires_grad());
      });
    }
  }
}

TEST_P(SharedDecoding, RoundsAsOneRankInBfloat16) {
  const at::NoGradGuard no_grad;
  const GoldenPart part(GetParam());
  const auto latents = latents_of(AutoencoderKLConfig::from_file(part.config()), 1, 7, 6).to(at::kBFloat16);
  const auto expected = model_of(part, at::kBFloat16)->decode(latents).to(at::kFloat);
  const auto exact = model_of(part)->decode(latents.to(at::kFloat));
  on_threads(3, [&](World& world) {
    const at::NoGradGuard none;
    const auto shared = model_of(part, at::kBFloat16)->decode(latents, world.group());
    EXPECT_EQ(shared.scalar_type(), at::kBFloat16);
    // No farther from float32 than one rank's.
    EXPECT_LE(norm_relative_error(shared.to(at::kFloat), exact), 1.25 * norm_relative_error(expected, exact));
  });
}

INSTANTIATE_TEST_SUITE_P(Models, SharedDecoding,
                         ::testing::Values("golden/part_vae", "parts/vae_quantised", "parts/vae_without_attention"),
                         [](const auto& name) { return name.param.substr(name.param.find('/') + 1); });

// A row to the neighbour for every 3x3 convolution, the statistics of every norm, and the picture at the end.
TEST(DecodingTogether, SendsNoMoreThanEdgesAndStatistics) {
  const GoldenPart part("parts/vae_without_attention");
  const auto config = AutoencoderKLConfig::from_file(part.config());
  const auto latents = latents_of(config, 1, 4, 3);
  const auto levels = static_cast<int64_t>(config.block_out_channels.size());
  const int64_t resnets = 2 + levels * (config.layers_per_block + 1);
  on_threads(2, [&](World& world) {
    const at::NoGradGuard none;
    auto model = model_of(part);
    const auto before = world.counter().counts();
    model->decode(latents, world.group());
    const auto sent = difference(world.counter().counts(), before);
    EXPECT_EQ(sent.size(), 2u);
    EXPECT_EQ(sent.at("send").calls, 1 + 2 * resnets + (levels - 1) + 1);
    EXPECT_EQ(sent.at("all_gather").calls, 2 * resnets + 1 + 1);
  });
}

TEST(DecodingTogether, RefusesOnEveryRankWhatOneRankRefuses) {
  const GoldenPart part("golden/part_vae");
  on_threads(2, [&](World& world) {
    auto model = model_of(part);
    EXPECT_THROW(model->decode(at::zeros({1, 3, 5, 9}), world.group()), ShapeError);
    EXPECT_NO_THROW(model->decode(latents_of(model->config(), 1, 2, 2), world.group()));
  });
}

}  // namespace
}  // namespace pardiff::testing
