#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace pardiff {

/// What the header of a safetensors file says about one tensor.
struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  /// Bytes within the data part of the file.
  int64_t begin = 0;
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// A tensor that is made when its bytes are written and dropped after that: a checkpoint larger than memory is written
/// tensor by tensor.
struct DeferredTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape = {};
  /// Returns a dense tensor of that dtype and shape.
  std::function<at::Tensor()> make = {};

  int64_t bytes() const;
};

/// A safetensors file mapped into memory. Copies share the mapping, and so do the tensors taken from it.
class SafetensorsFile {
 public:
  /// Maps a file (symbolic links are followed) and checks its whole header before anything else is allocated.
  /// Throws: CheckpointError naming file, tensor and values for whatever the format forbids: a truncated file, a
  /// git-lfs pointer, a header that is not JSON, duplicate names, unknown dtypes, shapes that do not fit their bytes,
  /// tensors that overlap or leave a gap.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  /// Equal in all processes of one host that have the same content of the same file mapped, whatever has taken its name
  /// since. Throws: CheckpointError.
  std::string identity() const;
  /// In the order of their bytes.
  const std::vector<TensorInfo>& tensors() const;
  const std::map<std::string, std::string>& metadata() const;
  bool contains(const std::string& name) const;
  /// Throws: CheckpointError if the file has no such tensor.
  const TensorInfo& info(const std::string& name) const;

  /// A tensor over the mapping. Writing to it changes this process's pages, what later calls return for the same name,
  /// and never the file.
  /// Cost: copies nothing, unless the data is not aligned to its dtype (`is_aligned`).
  /// Throws: CheckpointError if the file has no such tensor, or a BOOL tensor holds other bytes than 0 and 1.
  at::Tensor tensor(const std::string& name) const;
  bool is_aligned(const std::string& name) const;
  /// Lets go of the memory of the tensor's whole pages: they come back from the file when they are read. What was
  /// written to them is lost.
  void forget(const std::string& name) const;
  /// The tensor's bytes in the mapping.
  const std::byte* bytes(const std::string& name) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Writes tensors (any device, any strides) as one safetensors file, whole or not at all. The bytes depend only on
/// names, values and metadata, not on the order given. Throws: UsageError for a name that is empty, reserved, given
/// twice or not UTF-8, or a tensor that is undefined or of a dtype or layout the format does not know; CheckpointError
/// if the file cannot be written.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace pardiff
