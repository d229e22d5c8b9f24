#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/models/load.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace pardiff {

class Model;

/// Reads the weights of a model from its files when they are needed, and gives back those that are not needed for a
/// while. No collective: each rank reads its own, of which tensor parallelism decides at that time, and what the ranks
/// of one host would each copy they copy once (SharedWeights).
class WeightsOnDemand {
 public:
  using Names = std::function<bool(const std::string& name)>;

  /// `model` has placeholders for its weights, and owns this. Nothing is read yet.
  WeightsOnDemand(Model& model, Checkpoint checkpoint, LoadOptions options);

  /// Reads those of the named parameters that are not there. Throws: CheckpointError.
  void read(const Names& wanted);
  void read_all();
  /// Gives back the memory of those of the named parameters that are as they were read: what was trained, moved or
  /// written to since stays. Does nothing while gradients are recorded.
  void give_back(const Names& names);

  /// Whether a parameter, as it was read, lies in memory that other ranks of this host use too.
  bool is_shared(const std::string& name, const at::Tensor& parameter) const;
  /// The most bytes of the model's parameters that were there at once.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  // What a parameter was when it was read.
  struct Reading {
    const void* data;
    int64_t version;
    std::vector<int64_t> shape;  // of the whole parameter
    bool is_shared;              // with other ranks of this host
  };

  void read_named(const std::set<std::string>& names, const LoadOptions& options);

  Model& model_;
  Checkpoint checkpoint_;
  LoadOptions options_;
  std::set<std::string> missing_;
  std::map<std::string, Reading> read_;
  int64_t peak_bytes_ = 0;
};

/// Whether a parameter has no memory of its own: a placeholder.
bool is_placeholder(const at::Tensor& parameter);
/// The bytes of the parameters that are there.
int64_t present_bytes(const Model& model);

}  // namespace pardiff
