#include "cli/tokenizers.h"

namespace pardiff::cli {

namespace fs = std::filesystem;

fs::path own_tokenizers() {
  std::error_code error;
  const auto program = fs::read_symlink("/proc/self/exe", error);
  const fs::path candidates[] = {program.parent_path().parent_path() / "share/pardiff/tokenizers",
                                 PARDIFF_SOURCE_TOKENIZERS};
  for (const auto& folder : candidates) {
    if (fs::exists(folder / "tokenizer/vocab.json", error) && fs::exists(folder / "tokenizer_2/spiece.model", error)) {
      return folder;
    }
  }
  return {};
}

}  // namespace pardiff::cli
