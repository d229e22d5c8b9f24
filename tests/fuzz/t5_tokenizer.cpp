// 'p': a length and a prompt for a whole tokenizer. 'f': configuration, prompt and model file of another.
#include <pardiff/text/t5_tokenizer.h>

#include <cstdlib>

#include "fuzz/input.h"

namespace {

using namespace pardiff;

void encode(const T5Tokenizer& tokenizer, const std::string& prompt, int length) {
  const auto tokens = tokenizer.encode(prompt, length);
  if (static_cast<int>(tokens.ids.size()) != length) std::abort();
  for (const auto id : tokens.ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
  }
}

void read_files(const std::string& input) {
  const auto parts = fuzz::parts_of(input, 3);
  const auto& folder = fuzz::scratch_folder();
  pardiff::testing::put(folder / "tokenizer_config.json", parts[0]);
  pardiff::testing::put(folder / "spiece.model", parts[2]);
  encode(T5Tokenizer::from_pretrained(folder.path()), parts[1], 64);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto whole = T5Tokenizer::from_pretrained(PARDIFF_MODELS "/flux-shapes/tokenizer_2");
  if (size < 2) return 0;
  const std::string input(fuzz::text_of_input(data, size));
  fuzz::expect_refusal_or_success([&] {
    if (input[0] == 'f') read_files(input.substr(1));
    if (input[0] == 'p') encode(whole, input.substr(2), static_cast<unsigned char>(input[1]));
  });
  return 0;
}
