#include <ATen/ATen.h>
#include <pardiff/nn/parameter.h>

namespace pardiff::nn {

at::Tensor make_parameter(const std::vector<int64_t>& shape, const ParameterOptions& options) {
  const auto tensor_options = at::TensorOptions().dtype(options.dtype);
  return options.allocate ? at::empty(shape, tensor_options) : at::zeros({1}, tensor_options).expand(shape);
}

}  // namespace pardiff::nn
