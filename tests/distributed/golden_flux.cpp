#include "distributed/golden_flux.h"

#include <ATen/ATen.h>

namespace pardiff::testing {

FluxTransformer2DModel load(const GoldenPart& golden, at::ScalarType dtype) {
  return golden.load<FluxTransformer2DModel>(FluxTransformerConfig::from_file(golden.config()), dtype);
}

FluxTransformerInputs inputs_of(const GoldenPart& golden, at::ScalarType dtype, int64_t image, int64_t text) {
  const auto tokens = [](const at::Tensor& x, int64_t dim, int64_t count) {
    return count < 0 ? x : x.narrow(dim, 0, count);
  };
  FluxTransformerInputs inputs{
      .hidden_states = tokens(golden["input.hidden_states"].to(dtype), 1, image),
      .encoder_hidden_states = tokens(golden["input.encoder_hidden_states"].to(dtype), 1, text),
      .pooled_projections = golden["input.pooled_projections"].to(dtype),
      .timestep = golden["input.timestep"].to(dtype),
      .img_ids = tokens(golden["input.img_ids"], 0, image),
      .txt_ids = tokens(golden["input.txt_ids"], 0, text)};
  if (golden.config().boolean("guidance_embeds", false)) inputs.guidance = golden["input.guidance"];
  return inputs;
}

ParallelConfig FluxLayoutCase::config() const {
  ParallelConfig config;
  if (ring * ulysses > 1) {
    config.context_parallel_config = ContextParallelConfig{.ring_degree = ring,
                                                           .ulysses_degree = ulysses,
                                                           .rotate_method = rotate ? "alltoall" : "allgather",
                                                           .ulysses_anything = ulysses_anything,
                                                           .ring_anything = ring_anything};
  }
  if (tp > 1) config.tensor_parallel_config = TensorParallelConfig{.tp_degree = tp};
  return config;
}

bool FluxLayoutCase::accepts(const FluxTransformerInputs& inputs, int64_t heads) const {
  if (heads % tp != 0) return false;
  const int64_t ranks = ring * ulysses;
  const bool divides = inputs.hidden_states.size(1) % ranks == 0 && inputs.encoder_hidden_states.size(1) % ranks == 0;
  return (takes_any_length() || divides) && (ulysses_anything || heads / tp % ulysses == 0);
}

std::string FluxLayoutCase::name() const {
  return "Ring" + std::to_string(ring) + "Ulysses" + std::to_string(ulysses) + "Tp" + std::to_string(tp) +
         (ring_anything ? "RingAnything" : "") + (ulysses_anything ? "UlyssesAnything" : "") +
         (rotate ? "" : "Allgather");
}

std::vector<FluxLayoutCase> flux_layouts(const std::vector<int>& rank_counts) {
  std::vector<FluxLayoutCase> all;
  for (const int ranks : rank_counts) {
    for (int ring = 1; ring <= ranks; ++ring) {
      for (int ulysses = 1; ring * ulysses <= ranks; ++ulysses) {
        const int tp = ranks / (ring * ulysses);
        if (ring * ulysses * tp != ranks || 4 % tp != 0) continue;
        for (const bool ring_anything : {false, true}) {
          for (const bool ulysses_anything : {false, true}) {
            if ((ring == 1 && ring_anything) || (ulysses == 1 && ulysses_anything)) continue;
            if (!ulysses_anything && 4 / tp % ulysses != 0) continue;
            all.push_back({ring, ulysses, tp, ring_anything, ulysses_anything});
          }
        }
      }
    }
  }
  return all;
}

std::vector<FluxLayoutCase> flux_layouts_of_both_rotations(const std::vector<int>& rank_counts) {
  std::vector<FluxLayoutCase> all;
  for (auto layout : flux_layouts(rank_counts)) {
    all.push_back(layout);
    layout.rotate = false;
    if (layout.ring > 1) all.push_back(layout);
  }
  return all;
}

}  // namespace pardiff::testing
