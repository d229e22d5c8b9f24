#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/pipelines/flux_inputs.h>

#include <cstdint>

namespace pardiff::flux {

/// Noise from torch's CPU generator: one draw of the whole batch, or with a list of seeds one generator a picture.
/// Shapes: returns [pictures, channels, height, width] of latents.
at::Tensor draw_noise(const Seeds& seeds, int64_t pictures, int64_t channels, int64_t height, int64_t width,
                      at::ScalarType dtype);
/// Shapes: [B, C, H, W] -> [B, (H/2)(W/2), 4C], a token for every 2x2 latents.
at::Tensor pack(const at::Tensor& latents);
/// Shapes: [B, (H/2)(W/2), 4C] -> [B, C, H, W].
at::Tensor unpack(const at::Tensor& packed, int64_t height, int64_t width);
/// Shapes: [rows columns, 3]: (0, row, column).
at::Tensor image_ids(int64_t rows, int64_t columns, at::ScalarType dtype);

}  // namespace pardiff::flux
