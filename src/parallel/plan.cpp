#include <pardiff/core/check.h>
#include <pardiff/parallel/plan.h>

namespace pardiff {

TensorParallelStyle::TensorParallelStyle(const char* style) : TensorParallelStyle(std::string(style)) {}

TensorParallelStyle::TensorParallelStyle(const std::string& style) : kind_(Kind::kColumn) {
  check<ConfigError>(style == "colwise" || style == "rowwise", "unknown tensor-parallel style '", style,
                     "'. Use colwise, rowwise, packed_colwise(blocks) or packed_rowwise(blocks).");
  if (style == "rowwise") kind_ = Kind::kRow;
}

TensorParallelStyle TensorParallelStyle::packed_colwise(std::vector<int64_t> blocks) {
  return {Kind::kPackedColumn, std::move(blocks)};
}

TensorParallelStyle TensorParallelStyle::packed_rowwise(std::vector<int64_t> blocks) {
  return {Kind::kPackedRow, std::move(blocks)};
}

}  // namespace pardiff
