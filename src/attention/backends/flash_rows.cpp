#include "attention/backends/flash_rows.h"

#include <algorithm>
#include <cmath>

// Highway compiles what follows once for every kind of processor.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/backends/flash_rows.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pardiff::flash_cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;

float largest_of(const float* x, int64_t count) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float result = x[0];
  int64_t i = 0;
  if (count >= lanes) {
    auto first = hn::LoadU(d, x), second = first;
    for (; i + 2 * lanes <= count; i += 2 * lanes) {
      first = hn::Max(first, hn::LoadU(d, x + i));
      second = hn::Max(second, hn::LoadU(d, x + i + lanes));
    }
    for (; i + lanes <= count; i += lanes) first = hn::Max(first, hn::LoadU(d, x + i));
    result = hn::GetLane(hn::MaxOfLanes(d, hn::Max(first, second)));
  }
  for (; i < count; ++i) result = std::max(result, x[i]);
  return result;
}

float exponentiated(float* x, float scale, float shift, int64_t count) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, scale), offset = hn::Set(d, -shift);
  const auto step = [&](float* at) HWY_ATTR {
    const auto exponent = hn::MulAdd(hn::LoadU(d, at), factor, offset);
    // Highway's exponential of NaN is 0; the difference keeps it.
    const auto y = hn::Add(hn::Exp(d, exponent), hn::Sub(exponent, exponent));
    hn::StoreU(y, d, at);
    return y;
  };
  auto first = hn::Zero(d), second = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    first = hn::Add(first, step(x + i));
    second = hn::Add(second, step(x + i + lanes));
  }
  for (; i + lanes <= count; i += lanes) first = hn::Add(first, step(x + i));
  float total = hn::GetLane(hn::SumOfLanes(d, hn::Add(first, second)));
  for (; i < count; ++i) {
    x[i] = std::exp(x[i] * scale - shift);
    total += x[i];
  }
  return total;
}

void multiplied(float* x, float factor, int64_t count) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto by = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), by), d, x + i);
  for (; i < count; ++i) x[i] *= factor;
}

}  // namespace
}  // namespace pardiff::flash_cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pardiff::flash_cpu {

HWY_EXPORT(largest_of);
HWY_EXPORT(exponentiated);
HWY_EXPORT(multiplied);

float largest(const float* x, int64_t count) { return HWY_DYNAMIC_DISPATCH(largest_of)(x, count); }

float exponentiate(float* x, float scale, float shift, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(exponentiated)(x, scale, shift, count);
}

void multiply(float* x, float factor, int64_t count) { HWY_DYNAMIC_DISPATCH(multiplied)(x, factor, count); }

}  // namespace pardiff::flash_cpu
#endif
