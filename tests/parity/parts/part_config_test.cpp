#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/models/t5_encoder.h>

#include "support/golden.h"

namespace pardiff::testing {
namespace {

template <typename Config>
Config parsed(const std::string& json) {
  return Config::from_file(ConfigFile::parse(json, "some/config.json"));
}

// The message with which a file's configuration is refused.
template <typename Config>
std::string refusal(const std::string& json) {
  try {
    parsed<Config>(json);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "not refused";
}

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PartConfigs, WriteWhatTheyRead) {
  const auto round_trip = [](const auto& config) {
    using Config = std::decay_t<decltype(config)>;
    return parsed<Config>(config.to_json()).to_json();
  };
  const auto in_model = [](const std::string& part) { return ConfigFile::open(model_path("flux-shapes/" + part)); };
  const auto clip = ClipTextConfig::from_file(in_model("text_encoder/config.json"));
  EXPECT_EQ(round_trip(clip), clip.to_json());
  EXPECT_EQ(clip.hidden_size, 64);
  const auto t5 = T5Config::from_file(in_model("text_encoder_2/config.json"));
  EXPECT_EQ(round_trip(t5), t5.to_json());
  EXPECT_EQ(t5.d_kv, 24);
  const auto vae = AutoencoderKLConfig::from_file(in_model("vae/config.json"));
  EXPECT_EQ(round_trip(vae), vae.to_json());
  EXPECT_EQ(vae.shift_factor, -0.0445);
  EXPECT_EQ(vae.scale_factor(), 8);
}

TEST(PartConfigs, TakeTheReferencesDefaults) {
  const auto clip = parsed<ClipTextConfig>("{}");
  EXPECT_EQ(clip.hidden_size, 512);
  EXPECT_EQ(clip.eos_token_id, 49407);
  const auto t5 = parsed<T5Config>("{}");
  EXPECT_EQ(t5.activation(), "relu");
  EXPECT_EQ(parsed<T5Config>(R"({"feed_forward_proj": "gated-gelu"})").activation(), "gelu_new");
  EXPECT_EQ(parsed<T5Config>(R"({"feed_forward_proj": "gated-relu"})").activation(), "relu");
  const auto vae = parsed<AutoencoderKLConfig>(R"({"shift_factor": null})");
  EXPECT_EQ(vae.shift_factor, 0);
  EXPECT_EQ(vae.scaling_factor, 0.18215);
  EXPECT_TRUE(vae.use_quant_conv);
}

TEST(PartConfigs, RefuseWrongTypesNamingFileAndKey) {
  EXPECT_THAT(refusal<ClipTextConfig>(R"({"hidden_size": "big"})"),
              AllOf(HasSubstr("some/config.json"), HasSubstr("hidden_size"), HasSubstr("big")));
  EXPECT_THAT(refusal<ClipTextConfig>(R"({"eos_token_id": [2]})"), HasSubstr("eos_token_id"));
  EXPECT_THAT(refusal<T5Config>(R"({"num_layers": 2.5})"), HasSubstr("num_layers"));
  EXPECT_THAT(refusal<T5Config>(R"({"d_ff": 0})"), HasSubstr("d_ff"));
  EXPECT_THAT(refusal<AutoencoderKLConfig>(R"({"block_out_channels": 64})"), HasSubstr("block_out_channels"));
  EXPECT_THAT(refusal<AutoencoderKLConfig>(R"({"use_quant_conv": 1})"), HasSubstr("use_quant_conv"));
  EXPECT_THAT(refusal<AutoencoderKLConfig>(R"({"scaling_factor": 0})"), HasSubstr("scaling_factor"));
}

TEST(PartConfigs, RefuseSizesThatDoNotDivide) {
  EXPECT_THAT(refusal<ClipTextConfig>(R"({"hidden_size": 100, "num_attention_heads": 3})"),
              AllOf(HasSubstr("some/config.json"), HasSubstr("100"), HasSubstr("num_attention_heads 3")));
  EXPECT_THAT(refusal<AutoencoderKLConfig>(R"({"block_out_channels": [48]})"),
              AllOf(HasSubstr("48"), HasSubstr("norm_num_groups 32")));
  EXPECT_THROW(ClipTextModel(ClipTextConfig{.hidden_size = 100, .num_attention_heads = 3}), ConfigError);
}

TEST(PartConfigs, RefuseUnknownActivationsAndListTheKnown) {
  EXPECT_THAT(refusal<ClipTextConfig>(R"({"hidden_act": "mish"})"), AllOf(HasSubstr("mish"), HasSubstr("quick_gelu")));
  EXPECT_THAT(refusal<T5Config>(R"({"feed_forward_proj": "gated-mish"})"), AllOf(HasSubstr("mish"), HasSubstr("relu")));
  EXPECT_THAT(refusal<T5Config>(R"({"feed_forward_proj": "double-relu"})"), HasSubstr("double-relu"));
  EXPECT_THAT(refusal<AutoencoderKLConfig>(R"({"act_fn": "relu"})"), AllOf(HasSubstr("relu"), HasSubstr("silu")));
}

TEST(PartConfigs, RefuseBlockTypesThatAreNotHereAndListThoseThatAre) {
  EXPECT_THAT(refusal<AutoencoderKLConfig>(R"({"down_block_types": ["AttnDownEncoderBlock2D"]})"),
              AllOf(HasSubstr("AttnDownEncoderBlock2D"), HasSubstr("Use one of: DownEncoderBlock2D")));
  EXPECT_THAT(refusal<AutoencoderKLConfig>(R"({"up_block_types": ["AttnUpDecoderBlock2D"]})"),
              HasSubstr("Use one of: UpDecoderBlock2D"));
  EXPECT_THAT(refusal<AutoencoderKLConfig>(R"({"block_out_channels": [32, 64]})"),
              AllOf(HasSubstr("down_block_types has 1"), HasSubstr("2")));
}

TEST(PartConfigs, RefuseBucketsThatCannotCountDistances) {
  EXPECT_THAT(refusal<T5Config>(R"({"relative_attention_num_buckets": 3})"), HasSubstr("at least 4"));
  EXPECT_THAT(refusal<T5Config>(R"({"relative_attention_max_distance": 8})"), HasSubstr("more than 8"));
}

}  // namespace
}  // namespace pardiff::testing
