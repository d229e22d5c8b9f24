#include "attention/backends/flash_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/backends/flash_rows.h"

namespace pardiff::flash_cpu {
namespace {

constexpr int64_t kQueries = 64, kKeys = 512;  // of a block: its scores stay in the second-level cache
constexpr int64_t kLong = 256;                 // keys; for fewer the products are no longer what takes the time
constexpr int64_t kTransposed = 16;            // keys turned at a time: one cache line

#ifdef CPUBLAS_BRGEMM_F32F32F32  // an engine that has them
// c = a b, or c += a b. Shapes: a [m, k], b [k, n], c [m, n]; rows lie lda, ldb and ldc numbers apart.
void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
             int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c);
}

// The engine says only by an exception that it has no kernels for this processor.
bool has_products() {
  static const bool result = [] {
    const std::vector<float> a(16, 2.0F), b(16 * 16, 3.0F);
    std::vector<float> c(16, 0.0F);
    try {
      product(1, 16, 16, a.data(), 16, b.data(), 16, c.data(), 16, false);
    } catch (const c10::Error&) {
      return false;
    }
    return std::all_of(c.begin(), c.end(), [](float x) { return x == 96.0F; });
  }();
  return result;
}
#else
void product(int64_t, int64_t, int64_t, const float*, int64_t, const float*, int64_t, float*, int64_t, bool) {}
bool has_products() { return false; }
#endif

// One tensor [B, S, H, D] as the kernels walk it.
struct View {
  float* data;
  int64_t sample, token, head;  // numbers from one to the next

  explicit View(const at::Tensor& x)
      : data(x.mutable_data_ptr<float>()), sample(x.stride(0)), token(x.stride(1)), head(x.stride(2)) {}

  float* at(int64_t b, int64_t s, int64_t h) const { return data + b * sample + s * token + h * head; }
};

struct Problem {
  View query, key, value, out;
  double* lse;  // [B, Sq, H]; holds what was seen before, if anything was
  float* keys;  // [B, H, D, Skv]: the keys turned
  int64_t heads, queries, length, dim;
  float scale;
  bool is_onto;  // out and lse hold the result over other keys

  double& lse_of(int64_t b, int64_t row, int64_t h) const { return lse[(b * queries + row) * heads + h]; }
};

// The keys of one head, turned so that they can be the right side of a product.
void turn_keys(const Problem& problem, int64_t b, int64_t h) {
  float* turned = problem.keys + (b * problem.heads + h) * problem.dim * problem.length;
  for (int64_t start = 0; start < problem.length; start += kTransposed) {
    const int64_t count = std::min(kTransposed, problem.length - start);
    const float* rows = problem.key.at(b, start, h);
    for (int64_t channel = 0; channel < problem.dim; ++channel) {
      float* out = turned + channel * problem.length + start;
      for (int64_t i = 0; i < count; ++i) out[i] = rows[i * problem.key.token + channel];
    }
  }
}

// What a block of queries has seen so far.
struct Seen {
  float maximum[kQueries], sum[kQueries];

  // A result is a block of keys whose probabilities have been divided by their sum. In float32 the LSE, which takes the
  // maximum's place, is rounded, and by much where logits are large; the sum makes up for it.
  void take_up(const Problem& problem, int64_t b, int64_t h, int64_t first, int64_t rows, float* out) {
    for (int64_t row = 0; row < rows; ++row) {
      const double lse = problem.lse_of(b, first + row, h);
      maximum[row] = static_cast<float>(lse);
      sum[row] = std::isinf(lse) ? 0.0F : static_cast<float>(std::exp(lse - maximum[row]));
      multiply(out + row * problem.out.token, sum[row], problem.dim);
    }
  }
};

// Scores become probabilities relative to the largest score so far; what was summed before follows.
void soften(const Problem& problem, Seen& seen, float* scores, int64_t rows, int64_t keys, float* out, bool is_first) {
  for (int64_t row = 0; row < rows; ++row) {
    float* of_row = scores + row * kKeys;
    const float top = largest(of_row, keys) * problem.scale;
    const float maximum = is_first ? top : std::max(seen.maximum[row], top);
    const float sum = exponentiate(of_row, problem.scale, maximum, keys);
    if (is_first) {
      seen.sum[row] = sum;
    } else {
      const float shrink = std::exp(seen.maximum[row] - maximum);
      seen.sum[row] = seen.sum[row] * shrink + sum;
      if (shrink != 1.0F) multiply(out + row * problem.out.token, shrink, problem.dim);
    }
    seen.maximum[row] = maximum;
  }
}

void attend(const Problem& problem, int64_t b, int64_t h, int64_t first, float* scores) {
  const int64_t rows = std::min(kQueries, problem.queries - first), dim = problem.dim;
  const float* turned = problem.keys + (b * problem.heads + h) * dim * problem.length;
  float* out = problem.out.at(b, first, h);
  Seen seen;
  if (problem.is_onto) seen.take_up(problem, b, h, first, rows, out);
  for (int64_t start = 0; start < problem.length; start += kKeys) {
    const int64_t keys = std::min(kKeys, problem.length - start);
    const bool is_first = start == 0 && !problem.is_onto;
    product(rows, keys, dim, problem.query.at(b, first, h), problem.query.token, turned + start, problem.length, scores,
            kKeys, false);
    soften(problem, seen, scores, rows, keys, out, is_first);
    product(rows, dim, keys, scores, kKeys, problem.value.at(b, start, h), problem.value.token, out, problem.out.token,
            !is_first);
  }
  for (int64_t row = 0; row < rows; ++row) {
    multiply(out + row * problem.out.token, 1.0F / seen.sum[row], dim);
    problem.lse_of(b, first + row, h) = seen.maximum[row] + std::log(static_cast<double>(seen.sum[row]));
  }
}

bool is_float_on_cpu(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.layout() == at::kStrided;
}

// Into `output`, or onto what it holds.
void run(const KernelInputs& inputs, const KernelOutput& output, bool is_onto) {
  const int64_t batch = inputs.query.size(0), queries = inputs.query.size(1), heads = inputs.query.size(2),
                dim = inputs.query.size(3), length = inputs.key.size(1);
  const auto turned = at::empty({batch, heads, dim, length}, inputs.key.options());
  const Problem problem{View(inputs.query),
                        View(inputs.key),
                        View(inputs.value),
                        View(output.out),
                        output.lse.mutable_data_ptr<double>(),
                        turned.mutable_data_ptr<float>(),
                        heads,
                        queries,
                        length,
                        dim,
                        static_cast<float>(inputs.scale),
                        is_onto};
  at::parallel_for(0, batch * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) turn_keys(problem, i / heads, i % heads);
  });
  const int64_t blocks = (queries + kQueries - 1) / kQueries;
  at::parallel_for(0, batch * heads * blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(static_cast<size_t>(kQueries * kKeys));
    for (int64_t i = begin; i < end; ++i) {
      attend(problem, i / blocks / heads, i / blocks % heads, i % blocks * kQueries, scores.data());
    }
  });
}

}  // namespace

bool takes(const KernelInputs& inputs) {
  const auto fits = [](const at::Tensor& x) { return is_float_on_cpu(x) && (x.stride(3) == 1 || x.size(3) == 1); };
  return inputs.key.size(1) >= kLong && !inputs.mask.defined() && !inputs.is_causal && inputs.scale > 0 &&
         fits(inputs.query) && fits(inputs.key) && fits(inputs.value) && has_products();
}

bool takes_onto(const KernelOutput& seen, const KernelInputs& inputs) {
  return takes(inputs) && is_float_on_cpu(seen.out) && seen.out.stride(3) == 1 && seen.lse.is_contiguous();
}

KernelOutput forward(const KernelInputs& inputs) {
  const auto sizes = inputs.query.sizes();
  KernelOutput output{at::empty(sizes, inputs.query.options()),
                      at::empty(sizes.slice(0, 3), inputs.query.options().dtype(at::kDouble))};
  run(inputs, output, /*is_onto=*/false);
  if (!inputs.is_part) output.lse = output.lse.to(at::kFloat);
  return output;
}

KernelOutput forward_onto(KernelOutput seen, const KernelInputs& inputs) {
  run(inputs, seen, /*is_onto=*/true);
  return seen;
}

}  // namespace pardiff::flash_cpu
