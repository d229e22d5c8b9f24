#include "support/golden.h"

#include <ATen/ATen.h>

#include <limits>
#include <stdexcept>

namespace pardiff::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) {
    throw std::runtime_error("shapes differ: " + c10::str(actual.sizes()) + " and " + c10::str(expected.sizes()));
  }
  return actual.detach().cpu().to(at::kDouble) - expected.detach().cpu().to(at::kDouble);
}

double finite(const at::Tensor& value) {
  const double number = value.item<double>();
  return number == number ? number : kInfinity;
}

}  // namespace

std::string data_path(const std::string& name) { return std::string(PARDIFF_TEST_DATA) + "/" + name; }
std::string model_path(const std::string& name) { return std::string(PARDIFF_MODELS) + "/" + name; }

double absolute_error(const at::Tensor& actual, const at::Tensor& expected) {
  const auto apart = difference(actual, expected);
  return apart.numel() == 0 ? 0.0 : finite(apart.abs().max());
}

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const double apart = absolute_error(actual, expected);
  return apart == 0 ? 0 : apart / finite(expected.detach().to(at::kDouble).abs().max());
}

double norm_relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const double apart = finite(difference(actual, expected).norm());
  return apart == 0 ? 0 : apart / finite(expected.detach().to(at::kDouble).norm());
}

}  // namespace pardiff::testing
