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

/// Heads of one projection and where they go.
struct Heads {
  int64_t batch, tokens, heads, head_dim;  // of x, in one piece
  int64_t out_sample;                      // numbers from one sample of `out` to the next
};

/// RMSNorm of every head, times `weight` [head_dim], then its channel pairs turned by the complex `rotation`
/// [tokens, head_dim / 2] (cosine, sine, cosine, ...). `out` may be x.
void normed_rotation(const float* x, const float* weight, const float* rotation, float* out, const Heads& heads,
                     double eps);

/// out = gelu_tanh(x), whose rows lie `out_row` numbers apart in `out`. `out` may be x, if out_row is width.
void gelu_tanh(const float* x, float* out, int64_t out_row, int64_t rows, int64_t width);

/// x = x sigmoid(x)
void silu(float* x, int64_t count);

}  // namespace pardiff::nn::kernels
