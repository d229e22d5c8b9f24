#pragma once
#include <pardiff/io/image.h>

#include <vector>

namespace pardiff::cli {

/// All pictures, made small and put side by side in rows, in about a square; of one picture, the small one.
Image contact_sheet(const std::vector<Image>& pictures);

}  // namespace pardiff::cli
