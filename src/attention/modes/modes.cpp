#include <pardiff/attention/mode.h>
#include <pardiff/core/check.h>

namespace pardiff {

std::string AttentionMode::why_not_heads(int64_t heads, int ulysses_degree) const {
  if (any_heads || heads % ulysses_degree == 0) return "";
  return text_of(heads, " attention heads cannot be dealt equally to ulysses_degree ", ulysses_degree,
                 ". Use --ulysses-anything (ulysses_anything), or a degree that divides the heads.");
}

const std::vector<AttentionMode>& attention_modes() {
  // name, ring, ulysses, ring_anything, ulysses_anything, any_length, any_heads, requirement, when to use
  static const std::vector<AttentionMode> rows = {
      {"single", false, false, false, false, true, true, "none", "one rank"},
      {"ulysses", false, true, false, false, false, false, "lengths and heads divide by ulysses_degree",
       "fast links inside one machine; the least traffic"},
      {"ring", true, false, false, false, false, true, "lengths divide by ring_degree; a backend with LSE",
       "long sequences, slow links: transfers hide behind attention"},
      {"unified", true, true, false, false, false, false,
       "lengths divide by ring_degree x ulysses_degree, heads by ulysses_degree; a backend with LSE",
       "several machines: Ulysses inside, ring between"},
      {"ulysses_anything", false, true, false, true, true, true, "none", "Ulysses for any size and number of heads"},
      {"ring_anything", true, false, true, false, true, true, "a backend with LSE", "ring for any size"},
      {"unified_ulysses_anything", true, true, false, true, true, true, "a backend with LSE",
       "unified for any size and number of heads"},
      {"unified_ring_anything", true, true, true, false, true, false,
       "heads divide by ulysses_degree; a backend with LSE", "unified for any size"},
      {"unified_anything", true, true, true, true, true, true, "a backend with LSE",
       "unified for any size and number of heads"},
  };
  return rows;
}

const AttentionMode& attention_mode(const ContextParallelConfig& config) {
  const bool ring = config.ring() > 1, ulysses = config.ulysses() > 1;
  for (const auto& row : attention_modes()) {
    if (row.ring == ring && row.ulysses == ulysses && row.ring_anything == config.ring_anything &&
        row.ulysses_anything == config.ulysses_anything) {
      return row;
    }
  }
  fail<ConfigError>("no attention mode with ring_degree ", config.ring(), ", ulysses_degree ", config.ulysses(),
                    ", ring_anything ", config.ring_anything, ", ulysses_anything ", config.ulysses_anything,
                    ". An anything flag needs its degree above 1.");
}

}  // namespace pardiff
