#pragma once
#include <cstddef>
#include <string_view>

namespace pardiff {

/// The end of the extended grapheme cluster (Unicode 17) that starts at `begin`, which must be a cluster's start.
/// Indic conjuncts (rule GB9c) end between their consonants: T5 has no pieces in which the difference could show.
/// Cost: time proportional to the length of the cluster.
/// Source: Unicode Standard Annex 29, rules GB3 to GB13.
std::size_t cluster_end(std::string_view text, std::size_t begin);

}  // namespace pardiff
