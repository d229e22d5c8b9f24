#pragma once
#include <c10/core/ScalarType.h>
#include <pardiff/comm/world.h>

#include <optional>
#include <string>

namespace pardiff::cli {

/// The names that --dtype takes besides "auto".
at::ScalarType dtype_named(const std::string& name);

/// What --dtype means here; no value: each part keeps the dtype of its file. `auto` is the checkpoint's on CUDA, and on
/// a CPU bfloat16 where it has AMX, else float32: without AMX bfloat16 products run at half of float32's rate.
/// Collective: rank 0 decides for all.
std::optional<at::ScalarType> choose_dtype(const std::string& name, World& world);

/// Whether this CPU multiplies bfloat16 matrices in hardware.
bool cpu_has_amx_bfloat16();

}  // namespace pardiff::cli
