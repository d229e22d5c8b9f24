#pragma once
#include <pardiff/io/safetensors.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pardiff {

/// What stands before the data of a safetensors file: 8 bytes with the length of a JSON text, then that text.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;
};

/// Reads and checks the header of a file whose whole content is `file`; `origin` names it in messages.
/// Throws: CheckpointError for everything that the format forbids.
SafetensorsHeader read_safetensors_header(std::string_view file, const std::string& origin);

/// The header, length included, for tensors that already have their places; padded so that the data begins aligned.
std::string write_safetensors_header(const std::vector<TensorInfo>& tensors,
                                     const std::map<std::string, std::string>& metadata);

/// The format's name of a dtype, or nothing if it has none.
const char* safetensors_dtype_name(at::ScalarType dtype);

}  // namespace pardiff
