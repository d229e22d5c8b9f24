#include "cli/ranks.h"

#include <pardiff/core/check.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "cli/flags.h"

namespace pardiff::cli {
namespace {

constexpr int64_t kMostRanks = 4096;
constexpr int64_t kMostLocalRanks = 128;  // each is a process with a libtorch of its own
constexpr size_t kMostLayoutsShown = 12;

// Outermost first, as in the mesh.
std::vector<std::pair<const char*, std::optional<int64_t>>> degrees_of(const RankFlags& flags) {
  return {{"dp", flags.dp_degree},     {"fsdp", flags.fsdp_degree},       {"cfg", flags.cfg_degree},
          {"ring", flags.ring_degree}, {"ulysses", flags.ulysses_degree}, {"tp", flags.tp_degree}};
}

int64_t product_of_degrees(const RankFlags& flags) {
  int64_t product = 1;
  for (const auto& [axis, degree] : degrees_of(flags)) {
    if (__builtin_mul_overflow(product, degree.value_or(1), &product)) return std::numeric_limits<int64_t>::max();
  }
  return product;
}

bool any_degree(const RankFlags& flags) {
  const auto degrees = degrees_of(flags);
  return std::any_of(degrees.begin(), degrees.end(), [](const auto& row) { return row.second.has_value(); });
}

std::string degrees_text(const RankFlags& flags) {
  std::vector<std::string> parts;
  for (const auto& [axis, degree] : degrees_of(flags)) {
    if (degree) parts.push_back(text_of(axis, " ", *degree));
  }
  return joined(parts, " x ");
}

// --nproc-per-node, or the variable that serves the library's programs.
std::optional<int64_t> wanted_ranks(const RankFlags& flags) {
  if (flags.nproc_per_node) return flags.nproc_per_node;
  const char* text = std::getenv("PARDIFF_NPROC_PER_NODE");
  if (!text) return std::nullopt;
  return parse_integer("PARDIFF_NPROC_PER_NODE", text, {1, kMostLocalRanks});
}

std::string layouts_text(int64_t ranks) {
  const auto layouts = legal_layouts(static_cast<int>(ranks));
  return text_of("The layouts of ", ranks, " ranks for one picture: ", joined(layouts, " | "),
                 "; --dp-degree and --cfg-degree multiply with them.");
}

void check_product(const RankFlags& flags, int64_t ranks) {
  const int64_t product = product_of_degrees(flags);
  if (product == ranks) return;
  check<UsageError>(any_degree(flags), "there are ", ranks, " ranks and no degree says what they share. ",
                    layouts_text(ranks));
  fail<UsageError>("the degrees multiply to ", product, " (", degrees_text(flags), "), and there are ", ranks,
                   " ranks. ", layouts_text(ranks));
}

int as_int(const std::optional<int64_t>& degree) { return static_cast<int>(degree.value_or(1)); }

std::vector<std::string> axes_in(const std::string& text) {
  std::vector<std::string> axes;
  std::istringstream stream(text);
  for (std::string axis; std::getline(stream, axis, ',');) {
    const auto first = axis.find_first_not_of(' '), last = axis.find_last_not_of(' ');
    axes.push_back(first == std::string::npos ? axis : axis.substr(first, last - first + 1));
  }
  return axes;
}

std::optional<ParallelConfig> parallel_config(const RankFlags& flags) {
  ParallelConfig config;
  const bool anything = flags.ulysses_anything || flags.ring_anything;
  if (as_int(flags.ring_degree) > 1 || as_int(flags.ulysses_degree) > 1 || anything) {
    config.context_parallel_config = ContextParallelConfig{.ring_degree = as_int(flags.ring_degree),
                                                           .ulysses_degree = as_int(flags.ulysses_degree),
                                                           .convert_to_fp32 = !flags.no_convert_to_fp32,
                                                           .rotate_method = flags.rotate_method,
                                                           .ulysses_anything = flags.ulysses_anything,
                                                           .ring_anything = flags.ring_anything};
  }
  if (as_int(flags.tp_degree) > 1) {
    config.tensor_parallel_config = TensorParallelConfig{.tp_degree = as_int(flags.tp_degree)};
  }
  config.cfg_degree = as_int(flags.cfg_degree);
  config.dp_degree = as_int(flags.dp_degree);
  config.fsdp_degree = as_int(flags.fsdp_degree);
  config.shard_weights_over = axes_in(flags.shard_weights_over);
  if (config.ranks() == 1 && !config.context_parallel_config && config.shard_weights_over.empty()) return std::nullopt;
  try {
    config.validate();
  } catch (const ConfigError& error) {
    fail<UsageError>(error.what());
  }
  return config;
}

}  // namespace

void RankFlags::declare(Flags& flags) {
  const Range degrees{1, kMostRanks};
  flags
      .integer("--nproc-per-node", nproc_per_node, {1, kMostLocalRanks},
               "Ranks to start on this machine; default: the product of the degrees")
      .integer("--ring-degree", ring_degree, degrees, "Ranks that pass key/value blocks around a ring; default 1")
      .integer("--ulysses-degree", ulysses_degree, degrees, "Ranks that exchange heads for tokens; default 1")
      .integer("--tp-degree", tp_degree, degrees, "Ranks that share every layer's weights; default 1")
      .integer("--cfg-degree", cfg_degree, {1, 2}, "2: both passes of true guidance at once, on two groups; default 1")
      .integer("--dp-degree", dp_degree, degrees, "Groups of ranks that make different pictures; default 1")
      .integer("--fsdp-degree", fsdp_degree, degrees, "As --dp-degree, and they share the weights' storage; default 1")
      .text("--shard-weights-over", shard_weights_over,
            "Axes (ring,ulysses: any of dp, fsdp, cfg, ring, ulysses) whose ranks keep 1/N of the weights each")
      .toggle("--ulysses-anything", ulysses_anything, "Any length and number of heads under Ulysses")
      .toggle("--ring-anything", ring_anything, "Any length under ring")
      .choice("--rotate-method", rotate_method, {"alltoall", "allgather"},
              "How a ring moves blocks: the next one in flight (alltoall), or all of them first; default alltoall")
      .toggle("--no-convert-to-fp32", no_convert_to_fp32, "Merge partial attention results in their own dtype");
}

void RankFlags::declare_planning(Flags& flags) {
  flags.choice("--parallel", parallel, {"auto"}, "auto: the layout that pardiff plan predicts to be the fastest here")
      .path("--machine", machine,
            "For --parallel auto: what pardiff plan --calibrate has written; default: measured now");
}

void RankFlags::take(const ParallelConfig& config) {
  const auto context = config.context_parallel_config.value_or(ContextParallelConfig{});
  ring_degree = context.ring();
  ulysses_degree = context.ulysses();
  ring_anything = context.ring_anything;
  ulysses_anything = context.ulysses_anything;
  tp_degree = config.tensor_parallel_config ? config.tensor_parallel_config->degree() : 1;
  cfg_degree = config.cfg_degree;
  dp_degree = config.dp_degree;
  fsdp_degree = config.fsdp_degree;
  shard_weights_over = joined(config.shard_weights_over, ",");
}

std::string RankLayout::to_string() const {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, int degree) {
    if (degree > 1) parts.push_back(text_of(name, " ", degree));
  };
  if (parallel) {
    add("dp", parallel->dp_degree);
    add("fsdp", parallel->fsdp_degree);
    add("cfg", parallel->cfg_degree);
  }
  if (parallel && parallel->context_parallel_config) {
    add("ring", parallel->context_parallel_config->ring());
    add("ulysses", parallel->context_parallel_config->ulysses());
  }
  if (parallel && parallel->tensor_parallel_config) add("tp", parallel->tensor_parallel_config->degree());
  return text_of(ranks, ranks == 1 ? " rank" : " ranks", parts.empty() ? "" : ": ", joined(parts));
}

RankLayout choose_layout(const RankFlags& flags, const std::optional<LaunchEnv>& env) {
  RankLayout layout;
  if (env) {
    check<UsageError>(!flags.nproc_per_node || env->launcher == "pardiff", "--nproc-per-node is ",
                      flags.nproc_per_node.value_or(1), ", and this process already is one of ", env->world_size,
                      " ranks (started by: ", env->launcher, "). Leave it off, or unset the launcher's variables.");
    layout.ranks = env->world_size;
  } else {
    const int64_t ranks = wanted_ranks(flags).value_or(product_of_degrees(flags));
    check<UsageError>(ranks <= kMostLocalRanks, "the degrees multiply to ", ranks, ". At most ", kMostLocalRanks,
                      " ranks can be started on one machine.");
    layout.ranks = static_cast<int>(ranks);
    layout.to_start = layout.ranks > 1 ? layout.ranks : 0;
  }
  check<UsageError>(flags.machine.empty() || flags.parallel == "auto",
                    "--machine is given, and the layout is not planned. Add --parallel auto, or leave it off.");
  if (flags.parallel == "auto") {
    check<UsageError>(
        !any_degree(flags) && flags.shard_weights_over.empty(),
        "--parallel is auto, and the layout is given too. Leave out the degrees and --shard-weights-over, "
        "or --parallel; the number of ranks is --nproc-per-node.");
    layout.is_automatic = true;
    return layout;
  }
  check_product(flags, layout.ranks);
  layout.parallel = parallel_config(flags);
  return layout;
}

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::vector<std::string> legal_layouts(int ranks) {
  std::vector<std::string> layouts;
  for (int tp = 1; tp <= ranks; ++tp) {
    for (int ring = 1; ring * tp <= ranks; ++ring) {
      const int ulysses = ranks / (ring * tp);
      if (ring * tp * ulysses != ranks) continue;
      if (layouts.size() == kMostLayoutsShown) {
        layouts.push_back("...");
        return layouts;
      }
      std::vector<std::string> flags;
      const std::pair<const char*, int> degrees[] = {
          {"--ring-degree ", ring}, {"--ulysses-degree ", ulysses}, {"--tp-degree ", tp}};
      for (const auto& [flag, degree] : degrees) {
        if (degree > 1) flags.push_back(text_of(flag, degree));
      }
      layouts.push_back(flags.empty() ? "no degrees" : joined(flags, " "));
    }
  }
  return layouts;
}

}  // namespace pardiff::cli
