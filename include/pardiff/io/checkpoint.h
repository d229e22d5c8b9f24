#pragma once
#include <pardiff/io/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pardiff {

/// Parts of a tensor along one dimension, each [begin, end), concatenated in the order given. A shard of a packed
/// matrix (query, key and value in one) has several.
struct TensorSlice {
  int64_t dim = 0;
  std::vector<std::pair<int64_t, int64_t>> ranges = {};
};

/// One part of a model: a folder of safetensors files with its index, mapped into memory. Copies share the mapping and
/// the counter of copied bytes.
class Checkpoint {
 public:
  /// Opens STEM.safetensors (STEM.VARIANT.safetensors), or the shards that STEM.safetensors.index.json lists
  /// (STEM.safetensors.index.VARIANT.json); if both exist, the index wins. A tensor inside a listed shard is there
  /// whether or not the index names it. Throws: CheckpointError if neither exists, a listed shard or tensor is missing,
  /// a shard's name leads out of the folder, or a file is not sound.
  static Checkpoint open(const std::filesystem::path& folder, const std::string& stem, const std::string& variant = "");
  /// Opens one file by its own name, as the original layout ships.
  static Checkpoint open_file(const std::filesystem::path& file);

  /// The folder, or the file that `open_file` was given.
  const std::filesystem::path& path() const;
  /// The files that are read, in the order of their names.
  std::vector<std::filesystem::path> files() const;
  /// Of all files together (see SafetensorsFile::identity).
  std::string files_identity() const;
  /// Sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  /// Throws: CheckpointError if no file has such a tensor, here and below.
  const TensorInfo& info(const std::string& name) const;
  /// Of the whole tensor, or of a part of it. Throws: ShapeError, as `tensor`.
  std::vector<int64_t> shape(const std::string& name, const std::optional<TensorSlice>& slice = std::nullopt) const;
  /// The file that holds the tensor.
  const std::filesystem::path& file_of(const std::string& name) const;

  /// The whole tensor, over the mapping (see SafetensorsFile::tensor).
  /// Cost: copies nothing, unless the data is not aligned to its dtype.
  at::Tensor tensor(const std::string& name) const;
  /// A part of the tensor, in memory of its own.
  /// Cost: copies the slice out of the mapping and touches nothing else.
  /// Throws: ShapeError if the dimension or a range lies outside the tensor.
  at::Tensor tensor(const std::string& name, const TensorSlice& slice) const;

  /// Lets go of the memory of a tensor's pages, which come back from the file when they are read. What was written to
  /// the tensor in place is lost.
  void forget(const std::string& name) const;

  /// Bytes that `tensor` has copied out of the mapping so far, all threads together.
  int64_t bytes_copied() const;
  /// Bytes of all tensors.
  int64_t total_bytes() const;
  /// Names of the safetensors files in the folder that are not read.
  std::vector<std::string> stray_files() const;

 private:
  struct State;
  explicit Checkpoint(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

/// Writes tensors as diffusers does: one file, or shards of at most `max_shard_bytes` (a larger tensor gets its own) in
/// the order given, with an index. Creates the folder. Nothing changes there unless all of it could be written; then
/// shards and index of an older save under the same stem and variant are removed. `tensors` may come from the files
/// being replaced. Throws: UsageError for what write_safetensors refuses; CheckpointError if a file cannot be written.
void save_checkpoint(const std::filesystem::path& folder, const std::string& stem,
                     const std::vector<NamedTensor>& tensors, int64_t max_shard_bytes = 10'000'000'000,
                     const std::string& variant = "");

/// The same with tensors that are made one at a time, in the order of the files' bytes. Nothing may read the files
/// being replaced meanwhile. Cost: memory of one tensor.
void save_checkpoint(const std::filesystem::path& folder, const std::string& stem,
                     const std::vector<DeferredTensor>& tensors, int64_t max_shard_bytes = 10'000'000'000,
                     const std::string& variant = "");

}  // namespace pardiff
