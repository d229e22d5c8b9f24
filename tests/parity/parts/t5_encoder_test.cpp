#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/models/t5_encoder.h>

#include "parity/parts/golden_part.h"
#include "support/golden.h"

namespace pardiff::testing {
namespace {

const GoldenPart& golden() {
  static const GoldenPart part("golden/part_t5");
  return part;
}

T5Config golden_config() { return T5Config::from_file(golden().config()); }

class T5EncoderModelOfLength : public ::testing::TestWithParam<std::string> {};

TEST_P(T5EncoderModelOfLength, MatchesTheReference) {
  at::NoGradGuard no_grad;
  auto model = golden().load<T5EncoderModel>(golden_config());
  const auto actual = model->forward(golden()["input.ids_" + GetParam()]);
  EXPECT_TRUE(is_close("hidden", actual, golden()["output." + GetParam()], 2e-5));
}

INSTANTIATE_TEST_SUITE_P(Tokens, T5EncoderModelOfLength, ::testing::Values("7", "512"),
                         [](const auto& length) { return length.param; });

TEST(T5EncoderModel, MatchesTheReferenceInBfloat16) {
  at::NoGradGuard no_grad;
  auto model = golden().load<T5EncoderModel>(golden_config(), at::kBFloat16);
  const auto actual = model->forward(golden()["input.ids_512"]);
  EXPECT_EQ(actual.scalar_type(), at::kBFloat16);
  const auto expected = golden()["output_bfloat16.512"];
  RecordProperty("norm_relative", std::to_string(norm_relative_error(actual, expected)));
  EXPECT_TRUE(is_close_in_norm("hidden", actual, expected, 8e-3));
}

class T5FeedForward : public ::testing::TestWithParam<std::string> {};

TEST_P(T5FeedForward, MatchesTheReference) {
  at::NoGradGuard no_grad;
  const GoldenPart part("parts/t5_" + GetParam());
  const auto config = T5Config::from_file(part.config());
  EXPECT_TRUE(
      is_close("hidden", part.load<T5EncoderModel>(config)->forward(part["input.ids"]), part["output.hidden"], 1e-5));
  const auto half = part.load<T5EncoderModel>(config, at::kBFloat16)->forward(part["input.ids"]);
  EXPECT_TRUE(is_close_in_norm("bfloat16", half, part["output_bfloat16.hidden"], 8e-3));
  const auto mixed = part.load<T5EncoderModel>(config, at::kHalf)->forward(part["input.ids"]);
  EXPECT_EQ(mixed.scalar_type(), at::kHalf);
  EXPECT_TRUE(is_close_in_norm("float16", mixed, part["output_float16.hidden"], 1e-3));
}

INSTANTIATE_TEST_SUITE_P(Kinds, T5FeedForward, ::testing::Values("relu", "gated_silu"),
                         [](const auto& kind) { return kind.param; });

TEST(T5EncoderModel, KeepsTheLastLinearOfAFeedForwardInFloat32UnderFloat16) {
  at::NoGradGuard no_grad;
  auto model = golden().load<T5EncoderModel>(golden_config(), at::kHalf);
  for (const auto& item : model->named_parameters()) {
    EXPECT_EQ(item.value().scalar_type(), item.key().ends_with("wo.weight") ? at::kFloat : at::kHalf) << item.key();
  }
}

TEST(T5EncoderModel, KeepsItInFloat32WhenTheFileIsFloat16Too) {
  at::NoGradGuard no_grad;
  T5EncoderModel model(golden_config(), nn::ParameterOptions{.allocate = false});
  auto source = golden().weights();
  source.tensor = [whole = source.tensor](const std::string& name, const std::optional<TensorSlice>& slice) {
    return whole(name, slice).to(at::kHalf);
  };
  load_parameters(*model, source, model->load_options());
  for (const auto& item : model->named_parameters()) {
    EXPECT_EQ(item.value().scalar_type(), item.key().ends_with("wo.weight") ? at::kFloat : at::kHalf) << item.key();
  }
}

TEST(T5EncoderModel, WhatOverflowsFloat16ComesBackWithinItsRange) {
  at::NoGradGuard no_grad;
  auto model = golden().load<T5EncoderModel>(golden_config(), at::kHalf);
  auto output = model->named_parameters()["encoder.block.0.layer.0.SelfAttention.o.weight"];
  output.fill_(60000);
  EXPECT_FALSE(at::isnan(model->forward(golden()["input.ids_7"])).any().item<bool>());
}

class T5TokenTable : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(T5TokenTable, IsFoundUnderEitherNameOrBoth) {
  at::NoGradGuard no_grad;
  ::testing::internal::CaptureStderr();
  auto model = golden().load<T5EncoderModel>(golden_config(), {}, [](const std::string& name) {
    return name == "shared.weight" ? GetParam() : std::vector<std::string>{name};
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(is_close("hidden", model->forward(golden()["input.ids_7"]), golden()["output.7"], 2e-5));
}

INSTANTIATE_TEST_SUITE_P(Names, T5TokenTable,
                         ::testing::Values(std::vector<std::string>{"shared.weight"},
                                           std::vector<std::string>{"encoder.embed_tokens.weight"},
                                           std::vector<std::string>{"shared.weight", "encoder.embed_tokens.weight"}));

TEST(T5EncoderModel, NeedsTheTokenTableUnderSomeName) {
  EXPECT_THROW(golden().load<T5EncoderModel>(golden_config(), {},
                                             [](const std::string& name) {
                                               return name == "shared.weight" ? std::vector<std::string>{}
                                                                              : std::vector<std::string>{name};
                                             }),
               CheckpointError);
}

TEST(T5EncoderModel, GradientOfEveryParameterIsItsSlope) {
  auto model = golden().load<T5EncoderModel>(golden_config(), at::kDouble);
  at::manual_seed(3);
  const auto direction = at::randn({2, 7, 32}, at::kDouble);
  EXPECT_TRUE(
      gradients_are_slopes(*model, [&] { return (model->forward(golden()["input.ids_7"]) * direction).sum(); }));
}

TEST(T5EncoderModel, ItsTensorPlanNamesEveryLinear) {
  auto config = golden_config();
  EXPECT_TRUE(plan_covers_all_linears(*T5EncoderModel(config)));
  config.feed_forward_proj = "relu";
  EXPECT_TRUE(plan_covers_all_linears(*T5EncoderModel(config)));
}

TEST(T5EncoderModel, RefusesIdsThatAreNoBatchOfItsTokens) {
  at::NoGradGuard no_grad;
  auto model = golden().load<T5EncoderModel>(golden_config());
  EXPECT_THROW(model->forward(at::zeros({7}, at::kLong)), ShapeError);
  EXPECT_THROW(model->forward(at::full({1, 7}, 200, at::kLong)), ConfigError);
}

}  // namespace
}  // namespace pardiff::testing
