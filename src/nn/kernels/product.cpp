#include "nn/kernels/product.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>

#include "nn/kernels/choice.h"

namespace pardiff::nn::kernels {
namespace {

using MaybeTensor = std::optional<at::Tensor>;
using Scalars = c10::List<std::optional<at::Scalar>>;
using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const MaybeTensor&, std::string_view, Scalars,
                             std::optional<std::string_view>);
using OneDnnLinear = c10::TypedOperatorHandle<Signature>;

// The engine's own door to oneDNN's products; builds without oneDNN have none.
const std::optional<OneDnnLinear>& one_dnn_linear() {
  static const auto handle = []() -> std::optional<OneDnnLinear> {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!found || !at::Context::hasMKLDNN()) return std::nullopt;
    return found->typed<Signature>();
  }();
  return handle;
}

// One row is no matter of products but of reading the weights, and BLAS needs less preparation. From two rows on oneDNN
// computes each row alike whatever the others, so that ranks agree with one rank bit by bit.
constexpr int64_t kFewRows = 2;

bool suits_one_dnn(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (x.dim() < 2 || x.numel() == 0 || x.numel() < kFewRows * x.size(-1)) return false;
  return may_multiply(weight, x) && (!bias.defined() || is_plain_float(bias)) &&
         at::globalContext().userEnabledMkldnn() && one_dnn_linear().has_value();
}

at::Tensor multiplied(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool by_one_dnn) {
  if (!by_one_dnn) return at::linear(x, weight, bias);
  const at::AutoDispatchBelowAutograd no_autograd;
  return one_dnn_linear()->call(x, weight, bias.defined() ? MaybeTensor(bias) : std::nullopt, "none", Scalars(), "");
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return multiplied(x, weight, bias, suits_one_dnn(x, weight, bias));
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t begin, int64_t end) {
  const auto part = [&](const at::Tensor& whole) {
    return whole.defined() ? whole.narrow(0, begin, end - begin) : whole;
  };
  return multiplied(x, part(weight), part(bias), suits_one_dnn(x, weight, bias));
}

}  // namespace pardiff::nn::kernels
