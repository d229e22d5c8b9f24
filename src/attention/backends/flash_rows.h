#pragma once
#include <cstdint>

// Steps of flash attention on rows of float32, vectorised for what the processor has.
namespace pardiff::flash_cpu {

/// The largest of `count` numbers, at least 1.
float largest(const float* x, int64_t count);
/// x = exp(scale x - shift); returns the sum.
float exponentiate(float* x, float scale, float shift, int64_t count);
/// x = factor x
void multiply(float* x, float factor, int64_t count);

}  // namespace pardiff::flash_cpu
