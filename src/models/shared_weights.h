#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/models/load.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/host_memory.h"

namespace pardiff {

class Model;

/// Those weights of a parallel model that its ranks would each copy out of the files, to another dtype or as the slice
/// that other ranks have too. The ranks of one host copy them once: each copies what it is the first to need, and takes
/// the others' pages for the rest. No rank waits for one that is not copying just then.
class SharedWeights {
 public:
  using Names = std::set<std::string>;

  /// Null where there is nothing to share: one rank, a GPU, weights sharded over the ranks, no shared memory.
  /// `options` are those that the model is about to be read with. Throws: CheckpointError, CommError.
  static std::shared_ptr<SharedWeights> of(const Model& model, const Checkpoint& checkpoint,
                                           const LoadOptions& options);

  bool contains(const std::string& name) const { return blocks_.contains(name); }
  /// Fills the named parameters, which it contains. `read_own` reads those that it is given from the files.
  void read(const Names& names, const std::function<void(const Names&)>& read_own);

 private:
  struct Block {
    at::Tensor parameter;
    size_t index;  // in memory_
    size_t bytes;
    std::vector<int64_t> shape;  // of this rank's slice
    at::ScalarType dtype;
  };

  SharedWeights(std::map<std::string, Block> blocks, std::shared_ptr<comm::HostMemory> memory)
      : blocks_(std::move(blocks)), memory_(std::move(memory)) {}

  static std::map<std::string, Block> blocks_of(const Model& model, const Checkpoint& checkpoint,
                                                const LoadOptions& options);
  static void take(Block& block, std::shared_ptr<comm::HostMemory::Block> memory);
  void fill(const Names& names, const std::function<void(const Names&)>& read_own);

  std::map<std::string, Block> blocks_;
  std::shared_ptr<comm::HostMemory> memory_;
};

}  // namespace pardiff
