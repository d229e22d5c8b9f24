#include <pardiff/pipelines/part_classes.h>

#include <algorithm>
#include <utility>

namespace pardiff {
namespace {

struct PartClasses {
  const char* part;
  std::vector<std::string> classes;
};

// Source: diffusers' FluxPipeline.
const std::vector<PartClasses>& flux_part_classes() {
  static const std::vector<PartClasses> table = {
      {"scheduler", {"FlowMatchEulerDiscreteScheduler"}},
      {"text_encoder", {"CLIPTextModel"}},
      {"text_encoder_2", {"T5EncoderModel"}},
      {"tokenizer", {"CLIPTokenizer", "CLIPTokenizerFast"}},
      {"tokenizer_2", {"T5Tokenizer", "T5TokenizerFast"}},
      {"transformer", {"FluxTransformer2DModel"}},
      {"vae", {"AutoencoderKL"}},
  };
  return table;
}

}  // namespace

std::vector<ForeignPart> foreign_parts(const ConfigFile& model_index, const std::set<std::string>& brought_along) {
  std::vector<ForeignPart> foreign;
  for (const auto& [part, classes] : flux_part_classes()) {
    if (brought_along.contains(part)) continue;
    const auto component = model_index.component(part);
    auto name = component ? component->second : std::string("nothing");
    if (std::find(classes.begin(), classes.end(), name) != classes.end()) continue;
    foreign.push_back({part, std::move(name), classes});
  }
  return foreign;
}

}  // namespace pardiff
