#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/models/autoencoder_kl.h>

#include "parity/parts/golden_part.h"
#include "support/golden.h"

namespace pardiff::testing {
namespace {

const GoldenPart& golden() {
  static const GoldenPart part("golden/part_vae");
  return part;
}

AutoencoderKLConfig golden_config() { return AutoencoderKLConfig::from_file(golden().config()); }

TEST(AutoencoderKL, DecodesAsTheReference) {
  at::NoGradGuard no_grad;
  auto model = golden().load<AutoencoderKL>(golden_config());
  EXPECT_TRUE(is_close("decoded", model->decode(golden()["input.latents"]), golden()["output.decoded"], 1e-5));
}

TEST(AutoencoderKL, EncodesAsTheReference) {
  at::NoGradGuard no_grad;
  auto model = golden().load<AutoencoderKL>(golden_config());
  const auto latents = model->encode(golden()["input.image"]);
  EXPECT_TRUE(is_close("mean", latents.mean, golden()["output.mean"], 1e-5));
  EXPECT_TRUE(is_close("logvar", latents.logvar, golden()["output.logvar"], 1e-5));
}

class AutoencoderKLVariant : public ::testing::TestWithParam<std::string> {};

TEST_P(AutoencoderKLVariant, MatchesTheReference) {
  at::NoGradGuard no_grad;
  const GoldenPart part("parts/vae_" + GetParam());
  const auto config = AutoencoderKLConfig::from_file(part.config());
  auto model = part.load<AutoencoderKL>(config);
  const auto latents = model->encode(part["input.image"]);
  EXPECT_TRUE(is_close("mean", latents.mean, part["output.mean"], 1e-5));
  EXPECT_TRUE(is_close("logvar", latents.logvar, part["output.logvar"], 1e-5));
  EXPECT_TRUE(is_close("sample", latents.sample(part["input.noise"]), part["output.sample"], 1e-5));
  EXPECT_TRUE(is_close("decoded", model->decode(part["input.latents"]), part["output.decoded"], 1e-5));
  const auto half = part.load<AutoencoderKL>(config, at::kBFloat16)->decode(part["input.latents"].to(at::kBFloat16));
  EXPECT_EQ(half.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(is_close_in_norm("bfloat16", half, part["output_bfloat16.decoded"], 8e-3));
}

INSTANTIATE_TEST_SUITE_P(Configs, AutoencoderKLVariant, ::testing::Values("quantised", "without_attention"),
                         [](const auto& name) { return name.param; });

TEST(AutoencoderKL, GivesTheSameWhateverTheMemoryOrderOfItsInput) {
  at::NoGradGuard no_grad;
  auto model = golden().load<AutoencoderKL>(golden_config());
  const auto latents = golden()["input.latents"];
  const auto turned = latents.permute({3, 1, 0, 2}).contiguous().permute({2, 1, 3, 0});
  ASSERT_TRUE(at::equal(turned, latents));
  EXPECT_TRUE(at::equal(model->decode(turned), model->decode(latents)));
}

TEST(AutoencoderKL, WithoutItsEncoderLoadsLessAndDecodesTheSame) {
  at::NoGradGuard no_grad;
  for (const char* name : {"golden/part_vae", "parts/vae_quantised"}) {
    const GoldenPart part(name);
    const auto config = AutoencoderKLConfig::from_file(part.config());
    ::testing::internal::CaptureStderr();
    auto decoder = part.load<AutoencoderKL>(config, {}, {}, AutoencoderParts::kDecoder);
    auto encoder = part.load<AutoencoderKL>(config, {}, {}, AutoencoderParts::kEncoder);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_TRUE(is_close("decoded", decoder->decode(part["input.latents"]), part["output.decoded"], 1e-5));
    EXPECT_TRUE(is_close("mean", encoder->encode(part["input.image"]).mean, part["output.mean"], 1e-5));
    EXPECT_EQ(decoder->parameters().size() + encoder->parameters().size(), AutoencoderKL(config)->parameters().size());
    EXPECT_THROW(decoder->encode(part["input.image"]), ConfigError);
    EXPECT_THROW(encoder->decode(part["input.latents"]), ConfigError);
  }
}

// The attention's projections under their names of before 2023.
std::vector<std::string> older(const std::string& name) {
  for (const auto& [current, before] : {std::pair<std::string, std::string>{".to_q.", ".query."},
                                        {".to_k.", ".key."},
                                        {".to_v.", ".value."},
                                        {".to_out.0.", ".proj_attn."}}) {
    const auto place = name.find(current);
    if (place != std::string::npos) return {std::string(name).replace(place, current.size(), before)};
  }
  return {name};
}

TEST(AutoencoderKL, AcceptsTheAttentionsNamesOfOlderFiles) {
  at::NoGradGuard no_grad;
  ::testing::internal::CaptureStderr();
  auto model = golden().load<AutoencoderKL>(golden_config(), {}, older);
  auto decoder = golden().load<AutoencoderKL>(golden_config(), {}, older, AutoencoderParts::kDecoder);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(is_close("decoded", model->decode(golden()["input.latents"]), golden()["output.decoded"], 1e-5));
  EXPECT_TRUE(is_close("decoded", decoder->decode(golden()["input.latents"]), golden()["output.decoded"], 1e-5));
}

TEST(AutoencoderKL, ScalesAndUnscalesByItsConfig) {
  const AutoencoderKLConfig config{.scaling_factor = 0.5, .shift_factor = 0.25};
  AutoencoderKL model(config, nn::ParameterOptions{.allocate = false});
  EXPECT_EQ(model->unscaled(at::full({1}, 3.0)).item<double>(), 6.25);
  EXPECT_EQ(model->scaled(at::full({1}, 6.25)).item<double>(), 3.0);
}

TEST(AutoencoderKL, GradientOfEveryParameterIsItsSlope) {
  auto model = golden().load<AutoencoderKL>(golden_config(), at::kDouble);
  at::manual_seed(3);
  const auto latents = golden()["input.latents"].to(at::kDouble), image = golden()["input.image"].to(at::kDouble);
  const auto pixels = at::randn({2, 3, 20, 36}, at::kDouble), values = at::randn({2, 1, 4, 6, 10}, at::kDouble);
  EXPECT_TRUE(gradients_are_slopes(*model, [&] {
    const auto encoded = model->encode(image);
    return (model->decode(latents) * pixels).sum() + (encoded.mean * values[0]).sum() +
           (encoded.logvar * values[1]).sum();
  }));
}

TEST(AutoencoderKL, RefusesTensorsOfAnotherShape) {
  at::NoGradGuard no_grad;
  auto model = golden().load<AutoencoderKL>(golden_config());
  EXPECT_THROW(model->decode(at::zeros({4, 5, 9})), ShapeError);
  EXPECT_THROW(model->decode(at::zeros({1, 3, 5, 9})), ShapeError);
  EXPECT_THROW(model->encode(at::zeros({1, 3, 24, 3})), ShapeError);
}

}  // namespace
}  // namespace pardiff::testing
