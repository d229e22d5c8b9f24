#include "io/safetensors_header.h"

#include <pardiff/core/check.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "io/file_bytes.h"
#include "io/json_text.h"

namespace pardiff {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is mapped as it is");

constexpr int64_t kLargestHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kMostDims = 64;
constexpr const char* kMetadataKey = "__metadata__";

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U64", at::kUInt64},
    {"U32", at::kUInt32},
    {"U16", at::kUInt16},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
    {"C64", at::kComplexFloat},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"F8_E8M0", at::kFloat8_e8m0fnu},
};

// The faults of one tensor's entry, each with the file, the tensor and the values.
class EntryReader {
 public:
  EntryReader(const std::string& origin, const std::string& name, const nlohmann::json& entry)
      : origin_(origin), name_(name), entry_(entry) {}

  TensorInfo read(int64_t data_size) const {
    require(entry_.is_object(), "its entry is ", described(entry_), ", expected an object");
    TensorInfo info;
    info.name = name_;
    info.dtype = dtype();
    info.shape = shape();
    std::tie(info.begin, info.end) = offsets();
    const int64_t bytes = bytes_of(info);
    require(info.begin <= info.end, "its data_offsets are [", info.begin, ", ", info.end,
            "], which end before they begin");
    require(info.end - info.begin == bytes, "its data_offsets [", info.begin, ", ", info.end, "] hold ",
            info.end - info.begin, " bytes, but shape [", joined(info.shape), "] of ",
            field("dtype").get<std::string>(), " takes ", bytes);
    require(info.end <= data_size, "its data ends at byte ", info.end, ", but the file has only ", data_size,
            " bytes of data. It is truncated; fetch it again");
    return info;
  }

 private:
  template <typename... Parts>
  void require(bool condition, const Parts&... parts) const {
    check<CheckpointError>(condition, "cannot read ", origin_, ": tensor ", in_quotes(name_), ": ", parts..., ".");
  }

  const nlohmann::json& field(const char* key) const {
    const auto found = entry_.find(key);
    require(found != entry_.end(), "its entry has no ", key);
    return *found;
  }

  int64_t whole_number(const nlohmann::json& value, const char* key) const {
    // nlohmann calls every non-negative integer unsigned.
    const bool fits = value.is_number_unsigned() &&
                      value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    require(fits, "its ", key, " holds ", described(value), ", expected an integer from 0 to 2^63-1");
    return value.get<int64_t>();
  }

  at::ScalarType dtype() const {
    const auto& value = field("dtype");
    std::vector<const char*> known;
    for (const auto& [text, type] : kDtypes) {
      if (value.is_string() && value.get_ref<const std::string&>() == text) return type;
      known.push_back(text);
    }
    fail<CheckpointError>("cannot read ", origin_, ": tensor ", in_quotes(name_), ": its dtype is ", described(value),
                          ", expected one of ", joined(known), ".");
  }

  std::vector<int64_t> shape() const {
    const auto& value = field("shape");
    require(value.is_array() && value.size() <= kMostDims, "its shape is ", described(value),
            ", expected a list of at most ", kMostDims, " sizes");
    std::vector<int64_t> sizes;
    for (const auto& size : value) sizes.push_back(whole_number(size, "shape"));
    return sizes;
  }

  std::pair<int64_t, int64_t> offsets() const {
    const auto& value = field("data_offsets");
    require(value.is_array() && value.size() == 2, "its data_offsets are ", described(value),
            ", expected a list of begin and end");
    return {whole_number(value[0], "data_offsets"), whole_number(value[1], "data_offsets")};
  }

  // Strides are products that skip empty dimensions, so those must not hide an overflow either.
  int64_t bytes_of(const TensorInfo& info) const {
    auto bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
    bool fits = true;
    bool is_empty = false;
    for (const int64_t size : info.shape) {
      is_empty |= size == 0;
      fits = fits && !__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes);
    }
    require(fits, "its shape [", joined(info.shape), "] has more bytes than 2^63");
    return is_empty ? 0 : bytes;
  }

  const std::string& origin_;
  const std::string& name_;
  const nlohmann::json& entry_;
};

std::string_view json_part(std::string_view file, const std::string& origin) {
  refuse_git_lfs_pointer(file, origin);
  check<CheckpointError>(file.size() >= 8, "cannot read ", origin, ": it has ", file.size(),
                         " bytes, too few for a safetensors file. It is truncated; fetch it again.");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  check<CheckpointError>(length <= kLargestHeader, "cannot read ", origin, ": its header claims ", length,
                         " bytes, at most ", kLargestHeader, " are allowed. It is not a safetensors file.");
  check<CheckpointError>(length <= file.size() - 8, "cannot read ", origin, ": its header claims ", length,
                         " bytes, but only ", file.size() - 8, " follow. It is truncated; fetch it again.");
  const std::string_view text = file.substr(8, length);
  check<CheckpointError>(text.starts_with('{'), "cannot read ", origin,
                         ": its header does not begin with '{'. It is not a safetensors file.");
  return text;
}

std::map<std::string, std::string> read_metadata(const nlohmann::json& entry, const std::string& origin) {
  check<CheckpointError>(entry.is_object(), "cannot read ", origin, ": its ", kMetadataKey, " is ", described(entry),
                         ", expected an object.");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : entry.items()) {
    check<CheckpointError>(value.is_string(), "cannot read ", origin, ": ", kMetadataKey, " ", in_quotes(key), " is ",
                           described(value), ", expected a string.");
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

// Every byte of the data belongs to exactly one tensor: nothing is read twice, nothing is smuggled along.
void check_coverage(const std::vector<TensorInfo>& tensors, int64_t data_size, const std::string& origin) {
  int64_t covered = 0;
  const TensorInfo* before = nullptr;
  for (const auto& info : tensors) {
    check<CheckpointError>(info.begin >= covered, "cannot read ", origin, ": tensor ", in_quotes(info.name),
                           " begins at byte ", info.begin, " and overlaps tensor ",
                           in_quotes(before != nullptr ? before->name : ""), ", which ends at ", covered,
                           ". Fetch the file again.");
    check<CheckpointError>(info.begin == covered, "cannot read ", origin, ": bytes ", covered, " to ", info.begin,
                           " before tensor ", in_quotes(info.name),
                           " belong to no tensor: one may be missing from the header. Fetch the file again.");
    covered = info.end;
    before = &info;
  }
  check<CheckpointError>(covered == data_size, "cannot read ", origin, ": its tensors end at byte ", covered,
                         ", but the file has ", data_size, " bytes of data. Fetch the file again.");
}

}  // namespace

SafetensorsHeader read_safetensors_header(std::string_view file, const std::string& origin) {
  const std::string_view text = json_part(file, origin);
  const nlohmann::json entries = parse_json(text, origin + " (header)");
  const auto data_size = static_cast<int64_t>(file.size() - 8 - text.size());
  SafetensorsHeader header;
  header.data_begin = static_cast<int64_t>(8 + text.size());
  for (const auto& [name, entry] : entries.items()) {
    if (name == kMetadataKey) {
      header.metadata = read_metadata(entry, origin);
    } else {
      header.tensors.push_back(EntryReader(origin, name, entry).read(data_size));
    }
  }
  std::ranges::sort(header.tensors, {}, [](const auto& info) { return std::tie(info.begin, info.end, info.name); });
  check_coverage(header.tensors, data_size, origin);
  return header;
}

std::string write_safetensors_header(const std::vector<TensorInfo>& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json entries = nlohmann::ordered_json::object();
  if (!metadata.empty()) entries[kMetadataKey] = metadata;
  for (const auto& info : tensors) {
    entries[info.name] = {
        {"dtype", safetensors_dtype_name(info.dtype)}, {"shape", info.shape}, {"data_offsets", {info.begin, info.end}}};
  }
  std::string text = entries.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &length, 8);
  return header + text;
}

const char* safetensors_dtype_name(at::ScalarType dtype) {
  for (const auto& [name, type] : kDtypes) {
    if (type == dtype) return name;
  }
  return nullptr;
}

}  // namespace pardiff
