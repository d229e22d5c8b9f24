#include "nn/kernels/elementwise.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

// Highway compiles what follows once for every kind of processor.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/kernels/elementwise.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pardiff::nn::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;

float sum_of_lanes(Vector v) { return hn::GetLane(hn::SumOfLanes(Tag(), v)); }

float sum(const float* x, int64_t count) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto first = hn::Zero(d), second = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    first = hn::Add(first, hn::LoadU(d, x + i));
    second = hn::Add(second, hn::LoadU(d, x + i + lanes));
  }
  for (; i + lanes <= count; i += lanes) first = hn::Add(first, hn::LoadU(d, x + i));
  float total = sum_of_lanes(hn::Add(first, second));
  for (; i < count; ++i) total += x[i];
  return total;
}

// Of the distances from `centre`.
float sum_of_squares(const float* x, float centre, int64_t count) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto middle = hn::Set(d, centre);
  auto first = hn::Zero(d), second = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto a = hn::Sub(hn::LoadU(d, x + i), middle), b = hn::Sub(hn::LoadU(d, x + i + lanes), middle);
    first = hn::MulAdd(a, a, first);
    second = hn::MulAdd(b, b, second);
  }
  for (; i + lanes <= count; i += lanes) {
    const auto a = hn::Sub(hn::LoadU(d, x + i), middle);
    first = hn::MulAdd(a, a, first);
  }
  float total = sum_of_lanes(hn::Add(first, second));
  for (; i < count; ++i) total += (x[i] - centre) * (x[i] - centre);
  return total;
}

void modulated_norm_row(const float* x, const float* shift, const float* scale, float* out, int64_t width, double eps) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto count = static_cast<float>(width);
  const float mean = sum(x, width) / count;
  const float variance = sum_of_squares(x, mean, width) / count;
  const auto inverse = static_cast<float>(1.0 / std::sqrt(variance + eps));
  const auto middle = hn::Set(d, mean), factor = hn::Set(d, inverse), one = hn::Set(d, 1.0F);
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    const auto normed = hn::Mul(hn::Sub(hn::LoadU(d, x + i), middle), factor);
    const auto scaled = hn::MulAdd(normed, hn::Add(one, hn::LoadU(d, scale + i)), hn::LoadU(d, shift + i));
    hn::StoreU(scaled, d, out + i);
  }
  for (; i < width; ++i) out[i] = (x[i] - mean) * inverse * (1.0F + scale[i]) + shift[i];
}

void gated_residual_row(const float* x, const float* gate, float* y, int64_t width) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, gate + i), hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i);
  }
  for (; i < width; ++i) y[i] = x[i] + gate[i] * y[i];
}

// `turns`: cosine and sine of every pair, in turn.
void normed_rotation_row(const float* x, const float* weight, const float* turns, float* out, int64_t width,
                         double eps) {
  const float mean = sum_of_squares(x, 0.0F, width) / static_cast<float>(width);
  const auto inverse = static_cast<float>(1.0 / std::sqrt(mean + eps));
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR  // where a vector has no pairs
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, inverse);
  for (; i + lanes <= width; i += lanes) {
    const auto y = hn::Mul(hn::Mul(hn::LoadU(d, x + i), factor), hn::LoadU(d, weight + i));
    const auto turn = hn::LoadU(d, turns + i);
    const auto sine = hn::DupOdd(turn), other = hn::Mul(hn::Reverse2(d, y), sine);
    // (a, b) -> (a cos - b sin, b cos + a sin)
    hn::StoreU(hn::MulAdd(y, hn::DupEven(turn), hn::OddEven(other, hn::Neg(other))), d, out + i);
  }
#endif
  for (; i + 1 < width; i += 2) {
    const float a = x[i] * inverse * weight[i], b = x[i + 1] * inverse * weight[i + 1];
    out[i] = a * turns[i] - b * turns[i + 1];
    out[i + 1] = b * turns[i] + a * turns[i + 1];
  }
}

// v / (1 + exp(-s)). Beyond 88 the exponential leaves float32, and the quotient has long been 0.
Vector times_sigmoid(Vector v, Vector s) {
  const Tag d;
  const auto exponential = hn::Exp(d, hn::Min(hn::Neg(s), hn::Set(d, 88.0F)));
  return hn::Div(v, hn::Add(hn::Set(d, 1.0F), exponential));
}

Vector silu_of(Vector x) { return times_sigmoid(x, x); }

// x/2 (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3)
Vector gelu_of(Vector x) {
  const Tag d;
  const auto twice = hn::Set(d, 1.5957691216057308F), cubic = hn::Set(d, 1.5957691216057308F * 0.044715F);
  return times_sigmoid(x, hn::Mul(x, hn::MulAdd(hn::Mul(x, x), cubic, twice)));
}

// What does not fill a vector passes through a small array.
template <typename Function>
void map(const float* x, float* out, int64_t count, const Function& function) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(function(hn::LoadU(d, x + i)), d, out + i);
  if (i == count) return;
  HWY_ALIGN float rest[hn::MaxLanes(Tag())] = {};
  std::copy(x + i, x + count, rest);
  hn::Store(function(hn::Load(d, rest)), d, rest);
  std::copy(rest, rest + (count - i), out + i);
}

void gelu_row(const float* x, float* out, int64_t count) {
  map(x, out, count, [](Vector v) HWY_ATTR { return gelu_of(v); });
}

void silu_row(const float* x, float* out, int64_t count) {
  map(x, out, count, [](Vector v) HWY_ATTR { return silu_of(v); });
}

}  // namespace
}  // namespace pardiff::nn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pardiff::nn::kernels {
namespace {

HWY_EXPORT(modulated_norm_row);
HWY_EXPORT(gated_residual_row);
HWY_EXPORT(normed_rotation_row);
HWY_EXPORT(gelu_row);
HWY_EXPORT(silu_row);

constexpr int64_t kGrain = 32768;  // numbers that are worth a thread, as the engine's operators count

// Calls work(row) for all rows.
template <typename Work>
void for_rows(int64_t rows, int64_t width, const Work& work) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) work(row);
  });
}

}  // namespace

void modulated_norm(const float* x, const float* shift, const float* scale, float* out, const Shape& shape,
                    double eps) {
  const auto of_row = HWY_DYNAMIC_DISPATCH(modulated_norm_row);
  const int64_t width = shape.width;
  for_rows(shape.batch * shape.rows, width, [&](int64_t row) {
    const int64_t sample = row / shape.rows * width;
    of_row(x + row * width, shift + sample, scale + sample, out + row * width, width, eps);
  });
}

void gated_residual(const float* x, const float* gate, float* y, const Shape& shape) {
  const auto of_row = HWY_DYNAMIC_DISPATCH(gated_residual_row);
  const int64_t width = shape.width;
  for_rows(shape.batch * shape.rows, width,
           [&](int64_t row) { of_row(x + row * width, gate + row / shape.rows * width, y + row * width, width); });
}

void normed_rotation(const float* x, const float* weight, const float* rotation, float* out, const Heads& shape,
                     double eps) {
  const auto of_row = HWY_DYNAMIC_DISPATCH(normed_rotation_row);
  const int64_t width = shape.head_dim, token_width = shape.heads * width;
  for_rows(shape.batch * shape.tokens, token_width, [&](int64_t row) {
    const int64_t token = row % shape.tokens;
    const float* from = x + row * token_width;
    float* to = out + row / shape.tokens * shape.out_sample + token * token_width;
    for (int64_t head = 0; head < shape.heads; ++head) {
      of_row(from + head * width, weight, rotation + token * width, to + head * width, width, eps);
    }
  });
}

void gelu_tanh(const float* x, float* out, int64_t out_row, int64_t rows, int64_t width) {
  const auto of_row = HWY_DYNAMIC_DISPATCH(gelu_row);
  for_rows(rows, width, [&](int64_t row) { of_row(x + row * width, out + row * out_row, width); });
}

void silu(float* x, int64_t count) {
  // Pieces of one length, whatever the number of threads.
  constexpr int64_t kPiece = 4096;
  const auto of_row = HWY_DYNAMIC_DISPATCH(silu_row);
  for_rows((count + kPiece - 1) / kPiece, kPiece, [&](int64_t piece) {
    float* begin = x + piece * kPiece;
    of_row(begin, begin, std::min(kPiece, count - piece * kPiece));
  });
}

}  // namespace pardiff::nn::kernels
#endif
