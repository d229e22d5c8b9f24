// Reads records of a length in bytes, a line feed and that many bytes of text from stdin; prints for each a line with
// its CLIP ids and a line with its T5 ids.
#include <pardiff/core/error.h>
#include <pardiff/text/clip_tokenizer.h>
#include <pardiff/text/t5_tokenizer.h>

#include <iostream>
#include <string>

namespace {

void print(const pardiff::TokenizedPrompt& prompt) {
  for (const int64_t id : prompt.ids) std::cout << id << ' ';
  std::cout << '\n';
}

}  // namespace

int main() {
  try {
    const std::string model = std::string(PARDIFF_MODELS) + "/flux-shapes/";
    const auto clip = pardiff::ClipTokenizer::from_pretrained(model + "tokenizer");
    const auto t5 = pardiff::T5Tokenizer::from_pretrained(model + "tokenizer_2");
    std::string size;
    while (std::getline(std::cin, size)) {
      std::string text(std::stoul(size), '\0');
      std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
      print(clip.encode(text, clip.model_max_length()));
      print(t5.encode(text, t5.model_max_length()));
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
