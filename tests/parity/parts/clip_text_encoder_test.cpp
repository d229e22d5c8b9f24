#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/models/clip_text_encoder.h>

#include "parity/parts/golden_part.h"
#include "support/golden.h"

namespace pardiff::testing {
namespace {

const GoldenPart& golden() {
  static const GoldenPart part("golden/part_clip");
  return part;
}

ClipTextConfig golden_config() { return ClipTextConfig::from_file(golden().config()); }

TEST(ClipTextModel, MatchesTheReference) {
  at::NoGradGuard no_grad;
  auto model = golden().load<ClipTextModel>(golden_config());
  const auto output = model->forward(golden()["input.ids"]);
  EXPECT_TRUE(is_close("last_hidden_state", output.last_hidden_state, golden()["output.last_hidden_state"], 1e-5));
  EXPECT_TRUE(is_close("pooler_output", output.pooler_output, golden()["output.pooled"], 1e-5));
}

TEST(ClipTextModel, MatchesTheReferenceWithPlainGeluAndItsOwnEndToken) {
  at::NoGradGuard no_grad;
  const GoldenPart part("parts/clip_gelu");
  const auto config = ClipTextConfig::from_file(part.config());
  const auto output = part.load<ClipTextModel>(config)->forward(part["input.ids"]);
  EXPECT_TRUE(is_close("last_hidden_state", output.last_hidden_state, part["output.hidden"], 1e-5));
  EXPECT_TRUE(is_close("pooler_output", output.pooler_output, part["output.pooled"], 1e-5));
  const auto half = part.load<ClipTextModel>(config, at::kBFloat16)->forward(part["input.ids"]);
  EXPECT_EQ(half.pooler_output.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(is_close_in_norm("bfloat16", half.last_hidden_state, part["output_bfloat16.hidden"], 8e-3));
}

TEST(ClipTextModel, PoolsAtTheFirstEndTokenOrAtPositionZero) {
  at::NoGradGuard no_grad;
  auto config = golden_config();
  config.eos_token_id = 9;
  auto model = golden().load<ClipTextModel>(config);
  auto ids = at::full({3, 6}, 200, at::kLong);
  ids[0][2] = ids[0][4] = 9;
  ids[1][5] = 9;
  const auto output = model->forward(ids);
  const int64_t positions[] = {2, 5, 0};
  for (int64_t row = 0; row < 3; ++row) {
    EXPECT_TRUE(at::equal(output.pooler_output[row], output.last_hidden_state[row][positions[row]])) << "row " << row;
  }
}

TEST(ClipTextModel, PoolsAtTheHighestIdWhenTheEndTokenIsTwo) {
  at::NoGradGuard no_grad;
  auto model = golden().load<ClipTextModel>(golden_config());
  auto ids = at::full({1, 6}, 5, at::kLong);
  ids[0][3] = ids[0][5] = 299;
  ids[0][1] = 2;
  const auto output = model->forward(ids);
  EXPECT_TRUE(at::equal(output.pooler_output[0], output.last_hidden_state[0][3]));
}

TEST(ClipTextModel, AcceptsNamesWithAPrefixAndOldPositionIds) {
  at::NoGradGuard no_grad;
  const auto prefixed = [](const std::string& name) {
    std::vector<std::string> names = {"text_model." + name};
    // Any tensor will do: the position ids of older files are never read.
    if (name == "final_layer_norm.bias") names.push_back("text_model.embeddings.position_ids");
    return names;
  };
  ::testing::internal::CaptureStderr();
  auto model = golden().load<ClipTextModel>(golden_config(), {}, prefixed);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  const auto output = model->forward(golden()["input.ids"]);
  EXPECT_TRUE(is_close("pooler_output", output.pooler_output, golden()["output.pooled"], 1e-5));
}

TEST(ClipTextModel, StatesDoNotDependOnLaterTokens) {
  at::NoGradGuard no_grad;
  auto model = golden().load<ClipTextModel>(golden_config());
  const auto ids = golden()["input.ids"].slice(0, 0, 1).clone();
  auto changed = ids.clone();
  changed.slice(1, 40).fill_(17);
  const auto before = model->forward(ids).last_hidden_state, after = model->forward(changed).last_hidden_state;
  EXPECT_LE(absolute_error(after.slice(1, 0, 40), before.slice(1, 0, 40)), 1e-6);
  EXPECT_GT(absolute_error(after.slice(1, 40), before.slice(1, 40)), 1e-2);
}

TEST(ClipTextModel, GradientOfEveryParameterIsItsSlope) {
  auto model = golden().load<ClipTextModel>(golden_config(), at::kDouble);
  at::manual_seed(3);
  const auto hidden = at::randn({3, 77, 32}, at::kDouble), pooled = at::randn({3, 32}, at::kDouble);
  EXPECT_TRUE(gradients_are_slopes(*model, [&] {
    const auto output = model->forward(golden()["input.ids"]);
    return (output.last_hidden_state * hidden).sum() + (output.pooler_output * pooled).sum();
  }));
}

TEST(ClipTextModel, ItsTensorPlanNamesEveryLinear) {
  EXPECT_TRUE(plan_covers_all_linears(*ClipTextModel(golden_config())));
}

TEST(ClipTextModel, RefusesIdsThatAreNoBatchOfItsTokens) {
  at::NoGradGuard no_grad;
  auto model = golden().load<ClipTextModel>(golden_config());
  EXPECT_THROW(model->forward(at::zeros({77}, at::kLong)), ShapeError);
  EXPECT_THROW(model->forward(at::zeros({1, 78}, at::kLong)), ShapeError);
  EXPECT_THROW(model->forward(at::zeros({1, 0}, at::kLong)), ShapeError);
  EXPECT_THROW(model->forward(at::zeros({1, 77})), ShapeError);
  EXPECT_THROW(model->forward(at::full({1, 77}, 300, at::kLong)), ConfigError);
  EXPECT_THROW(model->forward(at::full({1, 77}, -1, at::kLong)), ConfigError);
}

}  // namespace
}  // namespace pardiff::testing
