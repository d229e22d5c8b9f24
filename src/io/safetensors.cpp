#include <ATen/ops/from_blob.h>
#include <pardiff/core/check.h>
#include <pardiff/io/atomic_file.h>
#include <pardiff/io/safetensors.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "io/exact_reading.h"
#include "io/file_bytes.h"
#include "io/safetensors_header.h"
#include "io/safetensors_writer.h"

namespace pardiff {

struct SafetensorsFile::State {
  std::filesystem::path path;
  std::shared_ptr<const MappedFile> mapping;
  SafetensorsHeader header;
  std::unordered_map<std::string, std::size_t> index;  // into header.tensors

  std::byte* bytes(const TensorInfo& info) const { return mapping->data() + header.data_begin + info.begin; }
};

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  auto state = std::make_shared<State>();
  state->path = path;
  state->mapping = MappedFile::open(path);
  state->header = with_whole_files([&] {
    const ExactReading reading(state->mapping->data(), state->mapping->data() + state->mapping->size());
    return read_safetensors_header(state->mapping->text(), path.string());
  });
  for (std::size_t i = 0; i < state->header.tensors.size(); ++i) state->index.emplace(state->header.tensors[i].name, i);
  SafetensorsFile file;
  file.state_ = std::move(state);
  return file;
}

const std::filesystem::path& SafetensorsFile::path() const { return state_->path; }
std::string SafetensorsFile::identity() const { return state_->mapping->identity(); }
const std::vector<TensorInfo>& SafetensorsFile::tensors() const { return state_->header.tensors; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return state_->header.metadata; }
bool SafetensorsFile::contains(const std::string& name) const { return state_->index.contains(name); }

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  const auto found = state_->index.find(name);
  check<CheckpointError>(found != state_->index.end(), "no tensor ", in_quotes(name), " in ", state_->path.string(),
                         ", which has ", tensors().size(), " tensors.");
  return tensors()[found->second];
}

const std::byte* SafetensorsFile::bytes(const std::string& name) const { return state_->bytes(info(name)); }

void SafetensorsFile::forget(const std::string& name) const {
  const auto& found = info(name);
  state_->mapping->forget(state_->bytes(found), found.bytes());
}

bool SafetensorsFile::is_aligned(const std::string& name) const {
  const auto& found = info(name);
  return reinterpret_cast<std::uintptr_t>(state_->bytes(found)) % c10::elementSize(found.dtype) == 0;
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const auto& found = info(name);
  std::byte* const data = state_->bytes(found);
  const MappedReading reading;
  if (found.dtype == at::kBool) {
    // Any other byte in a C++ bool is undefined behaviour for all that computes with it.
    const auto* wrong = std::find_if(data, data + found.bytes(), [](std::byte value) { return value > std::byte{1}; });
    check<CheckpointError>(wrong == data + found.bytes(), "cannot read ", state_->path.string(), ": tensor ",
                           in_quotes(name), " of dtype BOOL holds the byte ",
                           wrong == data + found.bytes() ? 0 : static_cast<int>(*wrong), ", expected 0 or 1.");
  }
  const auto options = at::TensorOptions().dtype(found.dtype);
  if (is_aligned(name)) {
    return at::from_blob(
        data, found.shape, [keep = state_](void*) {}, options);
  }
  std::vector<std::byte> aligned(data, data + found.bytes());
  reading.finish();
  auto* const copy = new std::vector<std::byte>(std::move(aligned));
  return at::from_blob(
      copy->data(), found.shape, [copy](void*) { delete copy; }, options);
}

namespace {

void check_tensor(const NamedTensor& entry, const std::filesystem::path& path) {
  const auto& tensor = entry.tensor;
  const auto require = [&](bool condition, const auto&... parts) {
    check<UsageError>(condition, "cannot write ", path.string(), ": tensor ", in_quotes(entry.name), " ", parts...,
                      ".");
  };
  require(tensor.defined(), "is undefined");
  require(tensor.layout() == at::kStrided && !tensor.is_quantized(), "is not a dense tensor. Convert it first");
}

}  // namespace

int64_t DeferredTensor::bytes() const {
  return c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
}

std::vector<DeferredTensor> deferred(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path) {
  std::vector<DeferredTensor> later;
  for (const auto& entry : tensors) {
    check_tensor(entry, path);
    later.push_back({entry.name, entry.tensor.scalar_type(), entry.tensor.sizes().vec(),
                     [tensor = entry.tensor] { return tensor; }});
  }
  return later;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<DeferredTensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), tensors_(std::move(tensors)) {
  std::set<std::string> names;
  for (const auto& tensor : tensors_) {
    const auto require = [&](bool condition, const auto&... parts) {
      check<UsageError>(condition, "cannot write ", path_.string(), ": tensor ", in_quotes(tensor.name), " ", parts...,
                        ".");
    };
    require(!tensor.name.empty() && tensor.name != "__metadata__", "has a name that the format does not allow");
    require(safetensors_dtype_name(tensor.dtype) != nullptr, "has dtype ", tensor.dtype,
            ", which the format does not know. Convert it first");
    require(names.insert(tensor.name).second, "is given twice");
  }
  // Widest dtype first keeps everything aligned without gaps, which the format forbids.
  std::ranges::sort(tensors_, {}, [](const DeferredTensor& tensor) {
    return std::tuple(-static_cast<int64_t>(c10::elementSize(tensor.dtype)), tensor.name);
  });
  std::vector<TensorInfo> places;
  int64_t end = 0;
  for (const auto& tensor : tensors_) {
    const int64_t begin = std::exchange(end, end + tensor.bytes());
    places.push_back({tensor.name, tensor.dtype, tensor.shape, begin, end});
  }
  try {
    header_ = write_safetensors_header(places, metadata);
  } catch (const nlohmann::json::exception& error) {
    fail<UsageError>("cannot write ", path_.string(), ": a name or its metadata is not UTF-8 (", error.what(), ").");
  }
}

AtomicFile SafetensorsWriter::write() const {
  AtomicFile file(path_);
  const MappedReading reading;  // of what `make` may take from another checkpoint
  file.write(header_.data(), header_.size());
  for (const auto& tensor : tensors_) {
    // resolve: a lazy conjugate or negation is a flag that the bytes do not show.
    const auto plain = tensor.make().detach().cpu().resolve_conj().resolve_neg().contiguous();
    check<UsageError>(plain.scalar_type() == tensor.dtype && plain.sizes() == at::IntArrayRef(tensor.shape),
                      "cannot write ", path_.string(), ": tensor ", in_quotes(tensor.name), " was made as ",
                      plain.scalar_type(), " ", plain.sizes(), ", not as ", tensor.dtype, " ",
                      at::IntArrayRef(tensor.shape), ".");
    try {
      file.write(plain.data_ptr(), static_cast<std::size_t>(plain.nbytes()));
    } catch (const CheckpointError&) {
      reading.finish();  // the kernel met the missing pages, not this process: a bad address of the source
      throw;
    }
  }
  reading.finish();
  return file;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter(path, deferred(tensors, path), metadata).write().commit();
}

}  // namespace pardiff
