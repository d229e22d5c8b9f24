#include <pardiff/core/dtype_name.h>

namespace pardiff {

std::string dtype_name(at::ScalarType dtype) {
  if (dtype == at::kFloat) return "float32";
  if (dtype == at::kDouble) return "float64";
  if (dtype == at::kHalf) return "float16";
  if (dtype == at::kBFloat16) return "bfloat16";
  return c10::toString(dtype);
}

}  // namespace pardiff
