#include "pipelines/flux_latents.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <vector>

namespace pardiff::flux {
namespace {

at::Tensor draw(int64_t seed, at::IntArrayRef shape, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::randn(shape, generator, at::TensorOptions().dtype(dtype));
}

}  // namespace

at::Tensor draw_noise(const Seeds& seeds, int64_t pictures, int64_t channels, int64_t height, int64_t width,
                      at::ScalarType dtype) {
  if (!seeds.is_list()) return draw(seeds.values().front(), {pictures, channels, height, width}, dtype);
  std::vector<at::Tensor> rows;
  for (const auto seed : seeds.values()) rows.push_back(draw(seed, {1, channels, height, width}, dtype));
  return at::cat(rows);
}

at::Tensor pack(const at::Tensor& latents) {
  const int64_t batch = latents.size(0), channels = latents.size(1), height = latents.size(2), width = latents.size(3);
  return latents.view({batch, channels, height / 2, 2, width / 2, 2})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({batch, (height / 2) * (width / 2), channels * 4});
}

at::Tensor unpack(const at::Tensor& packed, int64_t height, int64_t width) {
  const int64_t batch = packed.size(0), channels = packed.size(2) / 4;
  return packed.view({batch, height / 2, width / 2, channels, 2, 2})
      .permute({0, 3, 1, 4, 2, 5})
      .reshape({batch, channels, height, width});
}

at::Tensor image_ids(int64_t rows, int64_t columns, at::ScalarType dtype) {
  const auto ids = at::zeros({rows, columns, 3});
  ids.select(2, 1).add_(at::arange(rows).unsqueeze(1));
  ids.select(2, 2).add_(at::arange(columns).unsqueeze(0));
  return ids.view({rows * columns, 3}).to(dtype);  // bfloat16 rounds ids above 256, as the reference does
}

}  // namespace pardiff::flux
