#include <pardiff/io/variant.h>

#include "io/checkpoint_names.h"

namespace pardiff {

namespace fs = std::filesystem;

bool has_weights(const fs::path& folder, const std::string& stem, const std::string& variant) {
  const CheckpointNames names(stem, variant);
  std::error_code ignored;
  return fs::exists(fs::symlink_status(folder / names.single(), ignored)) ||
         fs::exists(fs::symlink_status(folder / names.index(), ignored));
}

std::string variant_of_part(const fs::path& folder, const std::string& stem, const std::string& variant) {
  return has_weights(folder, stem, variant) ? variant : "";
}

}  // namespace pardiff
