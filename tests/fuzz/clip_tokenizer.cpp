// 'p': a length and a prompt for a whole tokenizer. 'f': its files (vocabulary, merges, configuration) and a prompt.
#include <pardiff/text/clip_tokenizer.h>

#include <cstdlib>

#include "fuzz/input.h"

namespace {

using namespace pardiff;

void encode(const ClipTokenizer& tokenizer, const std::string& prompt, int length) {
  const auto tokens = tokenizer.encode(prompt, length);
  if (static_cast<int>(tokens.ids.size()) != length) std::abort();
  for (const auto id : tokens.ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
  }
}

void read_files(const std::string& input) {
  const auto parts = fuzz::parts_of(input, 4);
  const auto& folder = fuzz::scratch_folder();
  pardiff::testing::put(folder / "vocab.json", parts[0]);
  pardiff::testing::put(folder / "merges.txt", parts[1]);
  pardiff::testing::put(folder / "tokenizer_config.json", parts[2]);
  encode(ClipTokenizer::from_pretrained(folder.path()), parts[3], 77);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto whole = ClipTokenizer::from_pretrained(PARDIFF_MODELS "/flux-shapes/tokenizer");
  if (size < 2) return 0;
  const std::string input(fuzz::text_of_input(data, size));
  fuzz::expect_refusal_or_success([&] {
    if (input[0] == 'f') read_files(input.substr(1));
    if (input[0] == 'p') encode(whole, input.substr(2), static_cast<unsigned char>(input[1]));
  });
  return 0;
}
