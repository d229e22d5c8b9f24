#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/check.h>
#include <pardiff/core/error.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/nn/rope.h>

#include <cmath>
#include <map>

#include "models/module_tree.h"
#include "parity/parts/golden_part.h"
#include "support/golden.h"

namespace pardiff {
namespace {

using testing::GoldenPart;
using Outputs = std::map<std::string, at::Tensor>;

constexpr double kValueTolerance = 1e-5, kGradientTolerance = 1e-4, kBfloat16Tolerance = 8e-3;

FluxTransformer2DModel load(const GoldenPart& golden, std::optional<at::ScalarType> dtype = {}) {
  return golden.load<FluxTransformer2DModel>(FluxTransformerConfig::from_file(golden.config()), dtype);
}

FluxTransformerInputs inputs_of(const GoldenPart& golden) {
  FluxTransformerInputs inputs{.hidden_states = golden["input.hidden_states"],
                               .encoder_hidden_states = golden["input.encoder_hidden_states"],
                               .pooled_projections = golden["input.pooled_projections"],
                               .timestep = golden["input.timestep"],
                               .img_ids = golden["input.img_ids"],
                               .txt_ids = golden["input.txt_ids"]};
  if (golden.config().boolean("guidance_embeds", false)) inputs.guidance = golden["input.guidance"];
  return inputs;
}

// All but ids and guidance, which the pipeline keeps in float32.
FluxTransformerInputs cast(FluxTransformerInputs inputs, at::ScalarType dtype) {
  for (auto* tensor :
       {&inputs.hidden_states, &inputs.encoder_hidden_states, &inputs.pooled_projections, &inputs.timestep}) {
    *tensor = tensor->to(dtype);
  }
  return inputs;
}

// The outputs of every submodule under the golden file's names: a module with two has `.0` and `.1`.
Outputs observed(FluxTransformer2DModel& model, const FluxTransformerInputs& inputs) {
  Outputs outputs;
  model->set_observer([&](const std::string& module, const std::vector<at::Tensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      outputs["output." + module + (tensors.size() > 1 ? "." + std::to_string(i) : "")] = tensors[i];
    }
  });
  outputs["returned"] = model->forward(inputs);
  model->set_observer({});
  return outputs;
}

int count_of(const std::string& golden, const std::string& prefix) {
  const auto file = SafetensorsFile::open(testing::data_path(golden + ".safetensors"));
  int count = 0;
  for (const auto& info : file.tensors()) count += info.name.starts_with(prefix);
  return count;
}

class GoldenTransformer : public ::testing::TestWithParam<const char*> {
 protected:
  GoldenPart golden_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Files, GoldenTransformer,
                         ::testing::Values("golden/transformer_plain", "golden/transformer_guided"),
                         [](const auto& parameter) { return std::string(parameter.param).substr(19); });

TEST_P(GoldenTransformer, EveryOutputIsTheReferences) {
  auto model = load(golden_);
  for (const bool with_gradients : {true, false}) {
    at::AutoGradMode mode(with_gradients);
    const auto outputs = observed(model, inputs_of(golden_));
    EXPECT_EQ(static_cast<int>(outputs.size()) - 1, count_of(GetParam(), "output."));
    for (const auto& [name, tensor] : outputs) {
      const auto stored = name == "returned" ? "output.proj_out" : name;
      EXPECT_TRUE(testing::is_close(name.c_str(), tensor, golden_[stored], kValueTolerance)) << with_gradients;
    }
  }
}

TEST_P(GoldenTransformer, EveryGradientIsTheReferences) {
  auto model = load(golden_);
  const auto loss = model->forward(inputs_of(golden_)).to(at::kDouble).square().mean();
  EXPECT_TRUE(testing::is_close("loss", loss.reshape({1}), golden_["loss"], kValueTolerance));
  loss.backward();
  int parameters = 0;
  for (const auto& item : model->named_parameters()) {
    ++parameters;
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    const double error = testing::relative_error(item.value().grad(), golden_["grad." + item.key()]);
    EXPECT_LE(error, kGradientTolerance) << item.key() << ": " << error / kGradientTolerance << " of the tolerance";
  }
  EXPECT_EQ(parameters, count_of(GetParam(), "grad."));
}

TEST_P(GoldenTransformer, Bfloat16IsAsCloseAsTheReference) {
  auto model = load(golden_, at::kBFloat16);
  const auto inputs = cast(inputs_of(golden_), at::kBFloat16);
  for (const bool with_gradients : {true, false}) {
    at::AutoGradMode mode(with_gradients);
    const auto output = model->forward(inputs);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(testing::is_close_in_norm("output", output, golden_["output_bfloat16"], kBfloat16Tolerance));
  }
}

// Gates and biases that send what the reference clips over the largest float16: the text stream of a double block, both
// streams of a single block.
TEST_P(GoldenTransformer, Float16SaturatesInsteadOfOverflowing) {
  at::NoGradGuard no_grad;
  auto model = load(golden_, at::kHalf);
  for (const auto& item : model->named_parameters()) {
    const auto ends = [&](const char* name) { return item.key().ends_with(name); };
    if (ends("norm1_context.linear.bias") || ends(".norm.linear.bias")) item.value().fill_(2);
    if (ends("ff_context.net.2.bias") || (ends("proj_out.bias") && item.key() != "proj_out.bias")) {
      item.value().fill_(65000);
    }
  }
  int saturated = 0;
  for (const auto& [name, tensor] : observed(model, cast(inputs_of(golden_), at::kHalf))) {
    const bool is_text = name.starts_with("output.transformer_blocks.") && name.ends_with(".0");
    if (!is_text && !name.starts_with("output.single_transformer_blocks.")) continue;
    EXPECT_EQ(tensor.abs().max().item<double>(), 65504.0) << name;
    ++saturated;
  }
  EXPECT_EQ(saturated, 3 * static_cast<int>(golden_.config().integer("num_layers", 0)));
}

TEST_P(GoldenTransformer, LeavesItsInputsAlone) {
  at::NoGradGuard no_grad;
  auto model = load(golden_);
  const auto inputs = inputs_of(golden_);
  auto copy = inputs;
  const auto members = {&FluxTransformerInputs::hidden_states,
                        &FluxTransformerInputs::encoder_hidden_states,
                        &FluxTransformerInputs::pooled_projections,
                        &FluxTransformerInputs::timestep,
                        &FluxTransformerInputs::img_ids,
                        &FluxTransformerInputs::txt_ids};
  for (const auto member : members) {
    copy.*member = (inputs.*member).clone();
  }
  const auto first = model->forward(inputs);
  for (const auto member : members) EXPECT_TRUE(at::equal(inputs.*member, copy.*member));
  EXPECT_TRUE(at::equal(model->forward(inputs), first));
}

TEST_P(GoldenTransformer, TakesIdsWithALeadingOne) {
  at::NoGradGuard no_grad;
  auto model = load(golden_);
  auto inputs = inputs_of(golden_);
  const auto expected = model->forward(inputs);
  inputs.img_ids = inputs.img_ids.unsqueeze(0);
  inputs.txt_ids = inputs.txt_ids.unsqueeze(0);
  EXPECT_TRUE(at::equal(model->forward(inputs), expected));
  inputs.img_ids = at::cat({inputs.img_ids, inputs.img_ids});
  EXPECT_THROW(model->forward(inputs), ShapeError);
}

TEST_P(GoldenTransformer, ARowOfABatchIsTheSingleRun) {
  at::NoGradGuard no_grad;
  auto model = load(golden_);
  const auto one = inputs_of(golden_);
  auto two = one;
  const auto turned = [](const at::Tensor& x) { return at::cat({x, x.flip(-1)}); };
  two.hidden_states = turned(one.hidden_states);
  two.encoder_hidden_states = turned(one.encoder_hidden_states);
  two.pooled_projections = turned(one.pooled_projections);
  two.timestep = at::cat({one.timestep, one.timestep * 0.5});
  if (one.guidance.defined()) two.guidance = at::cat({one.guidance, one.guidance * 2});
  const auto together = model->forward(two);
  for (int64_t row = 0; row < two.timestep.size(0); ++row) {
    auto single = two;
    for (auto member : {&FluxTransformerInputs::hidden_states, &FluxTransformerInputs::encoder_hidden_states,
                        &FluxTransformerInputs::pooled_projections, &FluxTransformerInputs::timestep}) {
      single.*member = (two.*member).narrow(0, row, 1);
    }
    if (two.guidance.defined()) single.guidance = two.guidance.narrow(0, row, 1);
    EXPECT_TRUE(testing::is_close("row", together.narrow(0, row, 1), model->forward(single), kValueTolerance)) << row;
  }
}

TEST(FluxTransformer, RefusesGuidanceItHasNoUseForAndMissesGuidanceItNeeds) {
  at::NoGradGuard no_grad;
  const GoldenPart plain("golden/transformer_plain"), guided("golden/transformer_guided");
  auto inputs = inputs_of(plain);
  inputs.guidance = at::full({2}, 3.5);
  EXPECT_THROW(load(plain)->forward(inputs), ConfigError);
  inputs = inputs_of(guided);
  inputs.guidance = at::Tensor();
  EXPECT_THROW(load(guided)->forward(inputs), ConfigError);
}

TEST(FluxTransformer, GuidanceChangesThePicture) {
  at::NoGradGuard no_grad;
  const GoldenPart guided("golden/transformer_guided");
  auto model = load(guided);
  auto inputs = inputs_of(guided);
  const auto before = model->forward(inputs);
  inputs.guidance = inputs.guidance + 1;
  EXPECT_GT(testing::absolute_error(model->forward(inputs), before), 1e-3);
}

using InputMember = at::Tensor FluxTransformerInputs::*;

void expect_refused(FluxTransformer2DModel& model, const FluxTransformerInputs& inputs, const std::string& beginning) {
  try {
    model->forward(inputs);
    ADD_FAILURE() << beginning << " was accepted";
  } catch (const ShapeError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(beginning)) << error.what();
  }
}

TEST(FluxTransformer, NamesTheInputThatDoesNotFit) {
  at::NoGradGuard no_grad;
  const GoldenPart golden("golden/transformer_plain");
  auto model = load(golden);
  const std::map<std::string, InputMember> members = {
      {"hidden_states", &FluxTransformerInputs::hidden_states},
      {"encoder_hidden_states", &FluxTransformerInputs::encoder_hidden_states},
      {"pooled_projections", &FluxTransformerInputs::pooled_projections},
      {"timestep", &FluxTransformerInputs::timestep},
      {"img_ids", &FluxTransformerInputs::img_ids},
      {"txt_ids", &FluxTransformerInputs::txt_ids}};
  for (const auto& [name, member] : members) {
    for (const at::Tensor& wrong : {at::Tensor(), at::zeros({3, 5, 7})}) {
      auto inputs = inputs_of(golden);
      inputs.*member = wrong;
      expect_refused(model, inputs, name);
    }
  }
}

TEST(FluxTransformer, NamesTheInputOfAnotherDtype) {
  at::NoGradGuard no_grad;
  const GoldenPart golden("golden/transformer_plain");
  auto model = load(golden);
  const std::map<std::string, InputMember> members = {
      {"hidden_states", &FluxTransformerInputs::hidden_states},
      {"encoder_hidden_states", &FluxTransformerInputs::encoder_hidden_states},
      {"pooled_projections", &FluxTransformerInputs::pooled_projections}};
  for (const auto& [name, member] : members) {
    auto inputs = inputs_of(golden);
    inputs.*member = (inputs.*member).to(at::kBFloat16);
    expect_refused(model, inputs, text_of(name, " is BFloat16 on cpu, and the model is Float"));
  }
}

class FewBlocks : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Counts, FewBlocks, ::testing::Values(std::pair{0, 2}, std::pair{2, 0}, std::pair{0, 0}),
                         [](const auto& parameter) {
                           return std::to_string(parameter.param.first) + "Double" +
                                  std::to_string(parameter.param.second) + "Single";
                         });

// A block whose gates are 0 passes its streams on: the model without it must give the same.
TEST_P(FewBlocks, GiveWhatClosedGatesGive) {
  at::NoGradGuard no_grad;
  const GoldenPart golden("golden/transformer_guided");
  const auto config = FluxTransformerConfig::from_file(golden.config());
  auto few_config = config;
  std::tie(few_config.num_layers, few_config.num_single_layers) = GetParam();
  auto closed = load(golden);
  for (const auto& item : closed->named_parameters()) {
    const bool is_double = item.key().starts_with("transformer_blocks.");
    const bool is_single = item.key().starts_with("single_transformer_blocks.");
    const bool is_modulation =
        item.key().find(".norm") != std::string::npos && item.key().find("linear") != std::string::npos;
    if (!is_modulation) continue;
    if ((is_double && few_config.num_layers == 0) || (is_single && few_config.num_single_layers == 0))
      item.value().zero_();
  }
  FluxTransformer2DModel few(few_config);
  auto parameters = few->named_parameters();
  for (const auto& item : closed->named_parameters()) {
    if (auto* parameter = parameters.find(item.key())) parameter->copy_(item.value());
  }
  const auto inputs = inputs_of(golden);
  EXPECT_TRUE(testing::is_close("output", few->forward(inputs), closed->forward(inputs), kValueTolerance));
}

TEST(FluxTransformer, CountsTheTensorsOfThePublishedModels) {
  const nn::ParameterOptions no_memory{.allocate = false};
  FluxTransformer2DModel dev(FluxTransformerConfig{.guidance_embeds = true}, no_memory),
      schnell(FluxTransformerConfig{}, no_memory);
  EXPECT_EQ(dev->named_parameters().size(), 1160u);
  EXPECT_EQ(schnell->named_parameters().size(), 1156u);
  int64_t elements = 0;
  for (const auto& parameter : dev->parameters()) elements += parameter.numel();
  EXPECT_EQ(elements, 11'901'408'320);
}

// The reference's plan covers 8,608,346,112 of FLUX.1-dev's parameters; ours adds the modulation of every block.
TEST(FluxTransformer, TensorPlanCoversWhatTheReferencesCoversAndTheModulation) {
  FluxTransformer2DModel dev(FluxTransformerConfig{.guidance_embeds = true}, nn::ParameterOptions{.allocate = false});
  int64_t sharded = 0, modulation = 0;
  for (const auto& [key, style] : dev->tensor_parallel_plan()) {
    const bool modulates = key.find("norm") != std::string::npos;
    for (const auto& found : find_modules(*dev, key)) {
      const auto& linear = dynamic_cast<const nn::LinearImpl&>(*found.module);
      (modulates ? modulation : sharded) += linear.weight.numel() + (style.is_column() ? linear.bias.numel() : 0);
    }
  }
  EXPECT_EQ(sharded, 8'608'346'112);
  // 19 double blocks with two modulations of 6 chunks, 38 single blocks with one of 3, and the last norm's 2 chunks,
  // each 3072 x 3072 and a bias.
  EXPECT_EQ(modulation, int64_t{19 * 2 * 6 + 38 * 3 + 2} * (3072 * 3072 + 3072));
}

TEST(FluxTransformer, RotaryAnglesNeedFloat64) {
  const auto ids = at::tensor({0.0, 3000.0, 16000.0}).unsqueeze(1);
  const auto table = nn::rotary_table(ids, {16});
  for (int64_t k = 0; k < 8; ++k) {
    const double angle = 16000.0 * std::pow(10000.0, -2.0 * static_cast<double>(k) / 16.0);
    EXPECT_NEAR(table.cosines()[2][2 * k].item<double>(), std::cos(angle), 1e-7) << k;
    EXPECT_NEAR(table.sines()[2][2 * k + 1].item<double>(), std::sin(angle), 1e-7) << k;
  }
}

}  // namespace
}  // namespace pardiff
