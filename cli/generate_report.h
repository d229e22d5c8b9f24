#pragma once
#include <pardiff/comm/world.h>
#include <pardiff/pipelines/flux_output.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/generate_flags.h"
#include "cli/repetition.h"

namespace pardiff::cli {

/// What every rank measured, gathered on all of them.
struct RunReport {
  std::string config;              // JSON
  std::vector<std::string> ranks;  // JSON of each

  /// The whole as JSON. `started`: when this program began.
  std::string to_json(std::chrono::steady_clock::time_point started) const;
};

/// Collective: every rank of the world.
RunReport gather_report(const GenerateFlags& flags, const RankLayout& layout, std::optional<at::ScalarType> dtype,
                        const FluxPipelineOutput& output, World& world);

/// Key and text of every chunk that a picture carries: all that its bytes depend on.
std::vector<std::pair<std::string, std::string>> picture_text(const GenerateFlags& flags, const RankLayout& layout,
                                                              std::optional<at::ScalarType> dtype,
                                                              const FluxPipelineOutput& output, const World& world,
                                                              const PictureOrigin& origin, int64_t index);

}  // namespace pardiff::cli
