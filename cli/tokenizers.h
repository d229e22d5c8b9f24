#pragma once
#include <filesystem>

namespace pardiff::cli {

/// The folder with the tokenizers that `init` copies: the one installed with the program (../share/pardiff/tokenizers),
/// else that of the source it was built from. Empty if neither is there.
std::filesystem::path own_tokenizers();

}  // namespace pardiff::cli
