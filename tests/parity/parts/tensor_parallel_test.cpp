#include <ATen/ATen.h>
#include <pardiff/comm/world.h>
#include <pardiff/core/check.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/models/t5_encoder.h>

#include <map>

#include "parity/parts/golden_part.h"
#include "support/golden.h"

namespace pardiff::testing {
namespace {

const GoldenPart& clip() {
  static const GoldenPart part("golden/part_clip");
  return part;
}
const GoldenPart& t5() {
  static const GoldenPart part("golden/part_t5");
  return part;
}

ClipTextModel load_clip() { return clip().load<ClipTextModel>(ClipTextConfig::from_file(clip().config())); }
T5EncoderModel load_t5() { return t5().load<T5EncoderModel>(T5Config::from_file(t5().config())); }

class ClipTextModelOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(ClipTextModelOnRanks, WithTensorParallelismMatchesTheReference) {
  run_as_threads(GetParam(), [](World& world) {
    at::NoGradGuard no_grad;
    auto model = load_clip();
    model->enable_parallelism(TensorParallelConfig{.tp_degree = world.size()}, world);
    const auto output = model->forward(clip()["input.ids"]);
    EXPECT_TRUE(is_close("last_hidden_state", output.last_hidden_state, clip()["output.last_hidden_state"], 1e-5));
    EXPECT_TRUE(is_close("pooler_output", output.pooler_output, clip()["output.pooled"], 1e-5));
  });
}

INSTANTIATE_TEST_SUITE_P(Degrees, ClipTextModelOnRanks, ::testing::Values(2, 4));

TEST(T5EncoderModelOnRanks, WithTensorParallelismMatchesTheReference) {
  run_as_threads(3, [](World& world) {
    at::NoGradGuard no_grad;
    auto model = load_t5();
    model->enable_parallelism(TensorParallelConfig{.tp_degree = 3}, world);
    EXPECT_TRUE(is_close("hidden", model->forward(t5()["input.ids_512"]), t5()["output.512"], 2e-5));
  });
}

TEST(T5EncoderModelOnRanks, EveryRankGetsTheWholeGradientOfWhatIsNotCut) {
  // Drawn once: ranks on threads share the process's generator, so draws of their own would differ.
  const auto weights = at::randn({2, 7, 32});
  const auto gradients = [&](T5EncoderModel& model) {
    (model->forward(t5()["input.ids_7"]) * weights).sum().backward();
    std::map<std::string, at::Tensor> found;
    for (const auto& item : model->named_parameters()) found[item.key()] = item.value().grad();
    return found;
  };
  auto alone = load_t5();
  const auto expected = gradients(alone);
  run_as_threads(3, [&](World& world) {
    auto model = load_t5();
    model->enable_parallelism(TensorParallelConfig{.tp_degree = 3}, world);
    for (const auto& [name, gradient] : gradients(model)) {
      if (gradient.sizes() != expected.at(name).sizes()) continue;  // this rank's slice of a Linear
      EXPECT_LE(relative_error(gradient, expected.at(name)), 1e-4) << name << " on rank " << world.rank();
    }
  });
}

TEST(T5EncoderModelOnRanks, RefusesADegreeThatDoesNotDivideItsHeads) {
  EXPECT_THROW(run_as_threads(2,
                              [](World& world) {
                                auto model = load_t5();
                                model->enable_parallelism(TensorParallelConfig{.tp_degree = 2}, world);
                              }),
               ConfigError);
}

}  // namespace
}  // namespace pardiff::testing
