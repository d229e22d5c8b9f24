#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/models/flux_transformer.h>

#include "support/golden.h"

namespace pardiff {
namespace {

FluxTransformerConfig parsed(const std::string& json) {
  return FluxTransformerConfig::from_file(ConfigFile::parse(json, "transformer/config.json"));
}

TEST(FluxTransformerConfig, AnEmptyFileIsFluxSchnell) {
  const auto config = parsed("{}");
  EXPECT_EQ(config.inner_dim(), 3072);
  EXPECT_EQ(config.num_layers, 19);
  EXPECT_EQ(config.num_single_layers, 38);
  EXPECT_EQ(config.in_channels, 64);
  EXPECT_EQ(config.joint_attention_dim, 4096);
  EXPECT_EQ(config.pooled_projection_dim, 768);
  EXPECT_EQ(config.axes_dims_rope, (std::vector<int64_t>{16, 56, 56}));
  EXPECT_FALSE(config.guidance_embeds);
  EXPECT_FALSE(config.out_channels.has_value());
}

TEST(FluxTransformerConfig, ReadsWhatItWrote) {
  const auto shapes =
      FluxTransformerConfig::from_file(ConfigFile::open(testing::model_path("flux-shapes/transformer/config.json")));
  EXPECT_TRUE(shapes.guidance_embeds);
  EXPECT_EQ(shapes.num_single_layers, 6);
  EXPECT_EQ(shapes.axes_dims_rope, (std::vector<int64_t>{8, 12, 12}));
  EXPECT_EQ(parsed(shapes.to_json()).to_json(), shapes.to_json());
  auto other = shapes;
  other.out_channels = 32;
  EXPECT_EQ(parsed(other.to_json()).out_channels, 32);
}

TEST(FluxTransformerConfig, RefusesWhatCannotBeBuiltAndNamesTheKey) {
  const std::pair<const char*, const char*> cases[] = {{R"({"axes_dims_rope": [16, 56, 48]})", "axes_dims_rope"},
                                                       {R"({"axes_dims_rope": [15, 57, 56]})", "axes_dims_rope"},
                                                       {R"({"axes_dims_rope": []})", "axes_dims_rope"},
                                                       {R"({"num_layers": -1})", "num_layers"},
                                                       {R"({"num_single_layers": 100000})", "num_single_layers"},
                                                       {R"({"in_channels": 0})", "in_channels"},
                                                       {R"({"num_attention_heads": 0})", "num_attention_heads"},
                                                       {R"({"attention_head_dim": "128"})", "attention_head_dim"},
                                                       {R"({"guidance_embeds": 1})", "guidance_embeds"},
                                                       {R"({"out_channels": 0})", "out_channels"},
                                                       {R"({"num_attention_heads": 1000000})", "num_attention_heads"}};
  for (const auto& [json, key] : cases) {
    try {
      parsed(json);
      ADD_FAILURE() << json << " was accepted";
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("transformer/config.json"), std::string::npos) << error.what();
    }
  }
}

TEST(FluxTransformerConfig, AModelChecksAConfigFilledInByHand) {
  EXPECT_THROW(FluxTransformer2DModel(FluxTransformerConfig{.axes_dims_rope = {2, 2}}), ConfigError);
}

}  // namespace
}  // namespace pardiff
