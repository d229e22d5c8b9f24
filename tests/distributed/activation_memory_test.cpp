// What a forward pass over a long sequence takes at most, by the allocator's own count.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "distributed/golden_flux.h"
#include "support/on_threads.h"

namespace pardiff {
namespace {

using testing::FluxLayoutCase;
using testing::GoldenPart;

// Bytes that this thread held at once.
class PeakBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0, peak_ = 0;
};

// The golden inputs' tokens again and again.
FluxTransformerInputs long_inputs(const GoldenPart& golden, int64_t times) {
  auto inputs = testing::inputs_of(golden, at::kFloat, 12, 12);
  inputs.hidden_states = inputs.hidden_states.repeat({1, times, 1});
  inputs.encoder_hidden_states = inputs.encoder_hidden_states.repeat({1, times, 1});
  inputs.img_ids = inputs.img_ids.repeat({times, 1});
  inputs.txt_ids = inputs.txt_ids.repeat({times, 1});
  return inputs;
}

int64_t peak_of_forward(const GoldenPart& golden, const FluxLayoutCase& layout, World& world) {
  const at::NoGradGuard no_grad;
  const auto inputs = long_inputs(golden, 64);
  auto model = testing::load(golden, at::kFloat);
  if (layout.ranks() > 1) model->enable_parallelism(layout.config(), world);
  const auto meter = std::make_shared<PeakBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  model->forward(inputs);
  return meter->peak();
}

class ActivationMemory : public ::testing::TestWithParam<FluxLayoutCase> {};
INSTANTIATE_TEST_SUITE_P(Layouts, ActivationMemory,
                         ::testing::Values(FluxLayoutCase{4, 1, 1}, FluxLayoutCase{1, 4, 1}, FluxLayoutCase{2, 2, 1}),
                         [](const auto& parameter) { return parameter.param.name(); });

TEST_P(ActivationMemory, OfALongSequenceIsSharedByItsRanks) {
  const GoldenPart golden("golden/transformer_guided");
  int64_t alone = 0;
  testing::on_threads(1, [&](World& world) { alone = peak_of_forward(golden, {1, 1, 1, false}, world); });
  testing::on_threads(4, [&](World& world) {
    const int64_t shared = peak_of_forward(golden, GetParam(), world);
    EXPECT_LE(2 * shared, alone);
  });
}

}  // namespace
}  // namespace pardiff
