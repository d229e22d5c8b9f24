#pragma once
#include <cstdint>

// Passes over float32 arrays, vectorised for what the processor has (Highway, dispatched at run time) and dealt to the
// engine's threads by whole rows, so that a result does not depend on their number.
namespace pardiff::nn::kernels {

/// `batch` samples of `rows` rows of `width` neighbouring numbers.
struct Shape {
  int64_t batch, rows, width;
};

/// out = LayerNorm(x) (1 + scale) + shift, the norm over a row. Shapes: shift and scale [batch, width].
void modulated_norm(const float* x, const float* shift, const float* scale, float* out, const Shape& shape, double eps);

/// y = x + gate y. Shapes: gate [batch, width].
void gated_residual(const float* x, const float* gate, float* y, const Shape& shape);

/// out = gelu_tanh(x), whose rows lie `out_row` numbers apart in `out`. `out` may be x, if out_row is width.
void gelu_tanh(const float* x, float* out, int64_t out_row, int64_t rows, int64_t width);

/// x = x sigmoid(x)
void silu(float* x, int64_t count);

}  // namespace pardiff::nn::kernels
