#pragma once
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pardiff {

/// Cut a tensor along `split_dim` among the context ranks as it enters a module (or, with `split_output`, as it
/// leaves).
struct ContextParallelInput {
  int split_dim = 0;
  int expected_dims = 0;  // 0: any number of dimensions
  bool split_output = false;
};

/// Put a module's output together along `gather_dim`.
struct ContextParallelOutput {
  int gather_dim = 0;
  int expected_dims = 0;  // 0: any number of dimensions
  /// The input whose shares the output has ("module.argument", or the index of a split output). Empty: the first that
  /// the plan splits.
  std::string like = {};
};

/// One spec, or a list of them for an argument that is a list of tensors.
class ContextParallelInputs {
 public:
  ContextParallelInputs(const ContextParallelInput& spec) : specs_{spec} {}  // NOLINT(google-explicit-constructor)
  ContextParallelInputs(std::initializer_list<ContextParallelInput> specs)   // NOLINT(google-explicit-constructor)
      : specs_(specs), is_list_(true) {}
  const std::vector<ContextParallelInput>& specs() const { return specs_; }
  bool is_list() const { return is_list_; }

 private:
  std::vector<ContextParallelInput> specs_;
  bool is_list_ = false;
};

/// A parameter's name, or the index of one of the module's outputs.
class ContextParallelKey {
 public:
  ContextParallelKey(const char* name) : name_(name) {}             // NOLINT(google-explicit-constructor)
  ContextParallelKey(std::string name) : name_(std::move(name)) {}  // NOLINT(google-explicit-constructor)
  ContextParallelKey(int index) : index_(index) {}                  // NOLINT(google-explicit-constructor)
  bool is_index() const { return index_ >= 0; }
  int index() const { return index_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  int index_ = -1;
};

/// What happens at one module's edge: either inputs that are split or outputs that are gathered.
class ModulePlan {
 public:
  using Inputs = std::vector<std::pair<ContextParallelKey, ContextParallelInputs>>;
  ModulePlan(std::initializer_list<Inputs::value_type> inputs)
      : inputs_(inputs) {}                                               // NOLINT(google-explicit-constructor)
  ModulePlan(const ContextParallelOutput& output) : outputs_{output} {}  // NOLINT(google-explicit-constructor)
  ModulePlan(std::initializer_list<ContextParallelOutput> outputs)       // NOLINT(google-explicit-constructor)
      : outputs_(outputs), is_list_(true) {}
  const Inputs& inputs() const { return inputs_; }
  const std::vector<ContextParallelOutput>& outputs() const { return outputs_; }
  bool is_list() const { return is_list_; }

 private:
  Inputs inputs_;
  std::vector<ContextParallelOutput> outputs_;
  bool is_list_ = false;
};

/// Module name -> what happens at its edge. "" is the root; one `*` may stand for the entries of a ModuleList.
using ContextParallelPlan = std::map<std::string, ModulePlan>;

/// How a Linear's weight is cut: kPackedColumn and kPackedRow cut every block of `blocks` by itself.
class TensorParallelStyle {
 public:
  enum class Kind { kColumn, kRow, kPackedColumn, kPackedRow };
  /// "colwise" or "rowwise". Throws: ConfigError for another word.
  TensorParallelStyle(const char* style);         // NOLINT(google-explicit-constructor)
  TensorParallelStyle(const std::string& style);  // NOLINT(google-explicit-constructor)
  static TensorParallelStyle packed_colwise(std::vector<int64_t> blocks);
  static TensorParallelStyle packed_rowwise(std::vector<int64_t> blocks);

  Kind kind() const { return kind_; }
  bool is_column() const { return kind_ == Kind::kColumn || kind_ == Kind::kPackedColumn; }
  bool is_packed() const { return kind_ == Kind::kPackedColumn || kind_ == Kind::kPackedRow; }
  /// Proportional sizes of the packed blocks: {1, 4} cuts 5d into d and 4d.
  const std::vector<int64_t>& blocks() const { return blocks_; }

 private:
  TensorParallelStyle(Kind kind, std::vector<int64_t> blocks) : kind_(kind), blocks_(std::move(blocks)) {}
  Kind kind_;
  std::vector<int64_t> blocks_;
};

/// Module name of a Linear (one `*` may stand for the entries of a ModuleList) -> style.
using TensorParallelPlan = std::map<std::string, TensorParallelStyle>;

}  // namespace pardiff
