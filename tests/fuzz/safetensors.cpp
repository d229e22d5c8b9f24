// The input is a safetensors file.
#include <cstdlib>

#include "fuzz/input.h"
#include "io/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pardiff;
  fuzz::expect_refusal_or_success([&] {
    const auto file = fuzz::text_of_input(data, size);
    const auto header = read_safetensors_header(file, "input.safetensors");
    const auto data_bytes = static_cast<int64_t>(size) - header.data_begin;
    for (const auto& tensor : header.tensors) {
      // What loading would read must lie inside the file.
      if (tensor.begin < 0 || tensor.end < tensor.begin || tensor.end > data_bytes) std::abort();
    }
    // What was accepted can be written, and says the same.
    const auto again =
        write_safetensors_header(header.tensors, header.metadata) + std::string(file.substr(header.data_begin));
    if (read_safetensors_header(again, "again").tensors.size() != header.tensors.size()) std::abort();
  });
  return 0;
}
