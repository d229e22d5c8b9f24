#include "cli/dtype.h"

#include <pardiff/core/check.h>
#include <pardiff/core/dtype_name.h>

#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace pardiff::cli {

at::ScalarType dtype_named(const std::string& name) {
  std::vector<std::string> known;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    known.push_back(dtype_name(dtype));
    if (known.back() == name) return dtype;
  }
  fail<UsageError>("unknown dtype '", name, "'. Use one of: ", joined(known), ".");
}

bool cpu_has_amx_bfloat16() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAmxBfloat16 = 1u << 22, kAmxTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  return (edx & kAmxBfloat16) && (edx & kAmxTile);
#else
  return false;
#endif
}

std::optional<at::ScalarType> choose_dtype(const std::string& name, World& world) {
  const bool is_file_dtype = world.device().is_cuda();
  const std::string own = is_file_dtype ? "file" : cpu_has_amx_bfloat16() ? "bfloat16" : "float32";
  // Also by a rank that was told its dtype: one that was not would wait for it.
  const auto chosen = world.text_from_rank_0(name == "auto" ? own : name);
  if (name != "auto") return dtype_named(name);
  if (chosen == "file") return std::nullopt;
  return dtype_named(chosen);
}

}  // namespace pardiff::cli
