#include <ATen/ops/empty.h>
#include <pardiff/core/check.h>
#include <pardiff/io/checkpoint.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "io/checkpoint_names.h"
#include "io/exact_reading.h"
#include "io/file_bytes.h"
#include "io/json_text.h"

namespace pardiff {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestIndex = 100'000'000;

using WeightMap = std::map<std::string, std::string>;  // tensor -> file

WeightMap read_index(const fs::path& path) {
  const auto index = parse_json(read_whole_file(path, kLargestIndex), path.string());
  const auto entry = index.is_object() ? index.find("weight_map") : index.end();
  check<CheckpointError>(entry != index.end() && entry->is_object(), "cannot read ", path.string(),
                         ": it has no weight_map of tensors and files.");
  WeightMap weights;
  for (const auto& [name, file] : entry->items()) {
    check<CheckpointError>(file.is_string(), "cannot read ", path.string(), ": tensor ", in_quotes(name), " is in ",
                           described(file), ", expected the name of a file.");
    const auto& shard = file.get_ref<const std::string&>();
    check<CheckpointError>(
        shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos && shard.ends_with(".safetensors"),
        "cannot read ", path.string(), ": tensor ", in_quotes(name), " is in ", in_quotes(shard),
        ", expected the name of a .safetensors file in the same folder.");
    weights.emplace(name, shard);
  }
  return weights;
}

SafetensorsFile open_shard(const fs::path& shard, const fs::path& index) {
  std::error_code ignored;
  check<CheckpointError>(fs::exists(fs::symlink_status(shard, ignored)), "the shard ", shard.string(),
                         " is missing, but ", index.filename().string(), " lists it. Fetch the checkpoint again.");
  return SafetensorsFile::open(shard);
}

[[noreturn]] void fail_for_missing_weights(const fs::path& folder, const CheckpointNames& names) {
  std::error_code ignored;
  check<CheckpointError>(fs::is_directory(folder, ignored), "cannot open ", folder.string(),
                         ": there is no such folder. Fetch the checkpoint again.");
  const auto shards = names.shards_in(folder);
  check<CheckpointError>(shards.empty(), "cannot open ", folder.string(), ": it has shards (",
                         shards.empty() ? "" : shards.front(), ") but not their index ", names.index(),
                         ". Fetch the index too.");
  const auto others = safetensors_files_in(folder);
  fail<CheckpointError>("cannot open ", folder.string(), ": it has neither ", names.single(), " nor ", names.index(),
                        others.empty() ? std::string(" nor any other safetensors file")
                                       : text_of(", but ", joined(others), " (another variant?)"),
                        ". Fetch the checkpoint again, or name the variant.");
}

struct Rows {
  int64_t outer;      // rows before the dimension
  int64_t size;       // of the dimension
  int64_t row_bytes;  // of one index of it
};

Rows check_slice(const TensorInfo& info, const TensorSlice& slice, const fs::path& file) {
  const auto dims = static_cast<int64_t>(info.shape.size());
  check<ShapeError>(slice.dim >= 0 && slice.dim < dims, "cannot slice tensor ", in_quotes(info.name), " of ",
                    file.string(), " along dimension ", slice.dim, ": its shape is [", joined(info.shape), "].");
  Rows rows = {1, info.shape[static_cast<std::size_t>(slice.dim)], static_cast<int64_t>(c10::elementSize(info.dtype))};
  for (int64_t i = 0; i < dims; ++i) {
    if (i < slice.dim) rows.outer *= info.shape[static_cast<std::size_t>(i)];
    if (i > slice.dim) rows.row_bytes *= info.shape[static_cast<std::size_t>(i)];
  }
  for (const auto& [begin, end] : slice.ranges) {
    check<ShapeError>(0 <= begin && begin <= end && end <= rows.size, "cannot take [", begin, ", ", end,
                      ") along dimension ", slice.dim, " of tensor ", in_quotes(info.name), " of ", file.string(),
                      ": its shape is [", joined(info.shape), "].");
  }
  return rows;
}

std::vector<int64_t> shape_of_slice(const TensorInfo& info, const TensorSlice& slice) {
  auto shape = info.shape;
  int64_t length = 0;
  for (const auto& [begin, end] : slice.ranges) {
    check<ShapeError>(!__builtin_add_overflow(length, end - begin, &length), "the ranges of a slice of tensor ",
                      in_quotes(info.name), " add up to more than 2^63.");
  }
  shape[static_cast<std::size_t>(slice.dim)] = length;
  return shape;
}

// The slice of a tensor that begins at `whole`.
void copy_slice(const std::byte* whole, const Rows& rows, const TensorSlice& slice, std::byte* to) {
  if (rows.outer == 1) {
    for (const auto& [begin, end] : slice.ranges) {
      const std::byte *first = whole + begin * rows.row_bytes, *last = whole + end * rows.row_bytes;
      to = ExactReading(first, last).copy(first, last, to);
    }
    return;
  }
  // Stretches within a row are seldom whole pages: what lies between them is read too.
  ExactReading reading(whole, whole + rows.outer * rows.size * rows.row_bytes);
  for (int64_t row = 0; row < rows.outer; ++row) {
    const std::byte* from = whole + row * rows.size * rows.row_bytes;
    for (const auto& [begin, end] : slice.ranges) {
      to = reading.copy(from + begin * rows.row_bytes, from + end * rows.row_bytes, to);
    }
  }
}

}  // namespace

struct Checkpoint::State {
  fs::path path;
  fs::path folder;
  std::vector<SafetensorsFile> files;
  std::unordered_map<std::string, std::size_t> file_of;  // tensor -> files
  std::atomic<int64_t> bytes_copied{0};

  const SafetensorsFile& holder(const std::string& name) const {
    const auto found = file_of.find(name);
    check<CheckpointError>(found != file_of.end(), "no tensor ", in_quotes(name), " in ", path.string(), ", which has ",
                           file_of.size(), " tensors.");
    return files[found->second];
  }

  // A tensor that two shards hold is the one that the index names.
  void add(const SafetensorsFile& file, const WeightMap& weights) {
    for (const auto& info : file.tensors()) {
      const auto [entry, is_new] = file_of.emplace(info.name, files.size());
      if (is_new) continue;
      const auto listed = weights.find(info.name);
      const auto& other = files[entry->second].path();
      check<CheckpointError>(listed != weights.end(), "tensor ", in_quotes(info.name), " is both in ", other.string(),
                             " and ", file.path().filename().string(),
                             ", and the index does not say which counts. Remove one of the files.");
      if (listed->second == file.path().filename()) entry->second = files.size();
    }
    files.push_back(file);
  }
};

Checkpoint::Checkpoint(std::shared_ptr<State> state) : state_(std::move(state)) {}

Checkpoint Checkpoint::open(const fs::path& folder, const std::string& stem, const std::string& variant) {
  const CheckpointNames names(stem, variant);
  auto state = std::make_shared<State>();
  state->path = state->folder = folder;
  const fs::path index = folder / names.index();
  const fs::path single = folder / names.single();
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(index, ignored))) {
    const auto weights = read_index(index);
    std::set<std::string> shards;
    for (const auto& [name, shard] : weights) shards.insert(shard);
    for (const auto& shard : shards) state->add(open_shard(folder / shard, index), weights);
    for (const auto& [name, shard] : weights) {
      check<CheckpointError>(state->file_of.contains(name), "tensor ", in_quotes(name), " is missing from ",
                             (folder / shard).string(), ", where ", names.index(),
                             " says it is. Fetch the checkpoint again.");
    }
  } else if (fs::exists(fs::symlink_status(single, ignored))) {
    state->add(SafetensorsFile::open(single), {});
  } else {
    fail_for_missing_weights(folder, names);
  }
  return Checkpoint(std::move(state));
}

Checkpoint Checkpoint::open_file(const fs::path& file) {
  auto state = std::make_shared<State>();
  state->path = file;
  state->folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  state->add(SafetensorsFile::open(file), {});
  return Checkpoint(std::move(state));
}

const fs::path& Checkpoint::path() const { return state_->path; }

std::vector<fs::path> Checkpoint::files() const {
  std::vector<fs::path> paths;
  for (const auto& file : state_->files) paths.push_back(file.path());
  return paths;
}

std::string Checkpoint::files_identity() const {
  std::string identity;
  for (const auto& file : state_->files) identity += file.identity() + "/";
  return identity;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : state_->file_of) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

bool Checkpoint::contains(const std::string& name) const { return state_->file_of.contains(name); }
const TensorInfo& Checkpoint::info(const std::string& name) const { return state_->holder(name).info(name); }
const fs::path& Checkpoint::file_of(const std::string& name) const { return state_->holder(name).path(); }

std::vector<int64_t> Checkpoint::shape(const std::string& name, const std::optional<TensorSlice>& slice) const {
  const auto& file = state_->holder(name);
  const auto& info = file.info(name);
  if (!slice) return info.shape;
  check_slice(info, *slice, file.path());
  return shape_of_slice(info, *slice);
}

at::Tensor Checkpoint::tensor(const std::string& name) const {
  const auto& file = state_->holder(name);
  if (!file.is_aligned(name)) state_->bytes_copied += file.info(name).bytes();
  return file.tensor(name);
}

at::Tensor Checkpoint::tensor(const std::string& name, const TensorSlice& slice) const {
  const auto& file = state_->holder(name);
  const auto& info = file.info(name);
  const Rows rows = check_slice(info, slice, file.path());
  const auto shape = shape_of_slice(info, slice);
  const MappedReading reading;
  const auto part = at::empty(shape, at::TensorOptions().dtype(info.dtype));
  if (part.numel() > 0) copy_slice(file.bytes(name), rows, slice, static_cast<std::byte*>(part.data_ptr()));
  reading.finish();
  state_->bytes_copied += static_cast<int64_t>(part.nbytes());
  return part;
}

void Checkpoint::forget(const std::string& name) const { state_->holder(name).forget(name); }

int64_t Checkpoint::bytes_copied() const { return state_->bytes_copied; }

int64_t Checkpoint::total_bytes() const {
  int64_t total = 0;
  for (const auto& [name, file] : state_->file_of) total += state_->files[file].info(name).bytes();
  return total;
}

std::vector<std::string> Checkpoint::stray_files() const {
  auto strays = safetensors_files_in(state_->folder);
  for (const auto& file : state_->files) std::erase(strays, file.path().filename().string());
  return strays;
}

}  // namespace pardiff
