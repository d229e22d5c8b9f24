#include "models/original_flux.h"

#include <pardiff/core/check.h>

#include <optional>
#include <string_view>

namespace pardiff {
namespace {

constexpr std::string_view kPrefix = "model.diffusion_model.";  // of files that hold more than the transformer

using Renaming = std::map<std::string, std::string>;

// Names up to ".weight" and ".bias".
const Renaming& outer_names() {
  static const Renaming names = {{"img_in", "x_embedder"},
                                 {"txt_in", "context_embedder"},
                                 {"time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"},
                                 {"time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"},
                                 {"vector_in.in_layer", "time_text_embed.text_embedder.linear_1"},
                                 {"vector_in.out_layer", "time_text_embed.text_embedder.linear_2"},
                                 {"guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"},
                                 {"guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"},
                                 {"final_layer.adaLN_modulation.1", "norm_out.linear"},
                                 {"final_layer.linear", "proj_out"}};
  return names;
}

// Within "double_blocks.N.".
const Renaming& double_names() {
  static const Renaming names = {{"img_mod.lin", "norm1.linear"},
                                 {"txt_mod.lin", "norm1_context.linear"},
                                 {"img_attn.proj", "attn.to_out.0"},
                                 {"txt_attn.proj", "attn.to_add_out"},
                                 {"img_attn.norm.query_norm", "attn.norm_q"},
                                 {"img_attn.norm.key_norm", "attn.norm_k"},
                                 {"txt_attn.norm.query_norm", "attn.norm_added_q"},
                                 {"txt_attn.norm.key_norm", "attn.norm_added_k"},
                                 {"img_mlp.0", "ff.net.0.proj"},
                                 {"img_mlp.2", "ff.net.2"},
                                 {"txt_mlp.0", "ff_context.net.0.proj"},
                                 {"txt_mlp.2", "ff_context.net.2"}};
  return names;
}

// Within "single_blocks.N.".
const Renaming& single_names() {
  static const Renaming names = {{"modulation.lin", "norm.linear"},
                                 {"linear2", "proj_out"},
                                 {"norm.query_norm", "attn.norm_q"},
                                 {"norm.key_norm", "attn.norm_k"}};
  return names;
}

// Packed layers, and what their rows are in turn; the last one has what the others leave.
const std::map<std::string, std::vector<std::string>>& packed_names() {
  static const std::map<std::string, std::vector<std::string>> names = {
      {"img_attn.qkv", {"attn.to_q", "attn.to_k", "attn.to_v"}},
      {"txt_attn.qkv", {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"}},
      {"linear1", {"attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"}}};
  return names;
}

// "double_blocks.3.img_mod.lin.weight"
struct Name {
  std::string block;  // "transformer_blocks.3.", as the parameters have it; empty outside the blocks
  std::string layer;  // "img_mod.lin"
  std::string kind;   // ".weight"
};

Name parsed(std::string_view text) {
  Name name;
  for (const auto& [theirs, ours] :
       {std::pair{"double_blocks.", "transformer_blocks."}, {"single_blocks.", "single_transformer_blocks."}}) {
    if (!text.starts_with(theirs)) continue;
    text.remove_prefix(std::string_view(theirs).size());
    const auto number = text.substr(0, text.find('.'));
    name.block = text_of(ours, number, ".");
    text.remove_prefix(std::min(text.size(), number.size() + 1));
    break;
  }
  const auto dot = std::min(text.rfind('.'), text.size());
  name.layer = text.substr(0, dot);
  name.kind = text.substr(dot);
  if (name.kind == ".scale") name.kind = ".weight";
  return name;
}

const Renaming& names_in(const std::string& block) {
  if (block.empty()) return outer_names();
  return block.starts_with("single") ? single_names() : double_names();
}

class Renamed {
 public:
  explicit Renamed(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    for (const auto& prefix : {std::string(), std::string(kPrefix)}) {
      const auto input = text_of(prefix, "img_in.weight");
      if (checkpoint.contains(input)) width_ = checkpoint.info(input).shape.front();
    }
  }

  std::map<std::string, OriginalTensor> run() {
    for (const auto& name : checkpoint_.names()) add(name);
    return std::move(tensors_);
  }

 private:
  void add(const std::string& full) {
    auto short_name = std::string_view(full);
    if (short_name.starts_with(kPrefix)) short_name.remove_prefix(kPrefix.size());
    const auto name = parsed(short_name);
    const auto packed = name.block.empty() ? packed_names().end() : packed_names().find(name.layer);
    if (packed != packed_names().end()) return add_packed(full, name, packed->second);
    const auto& names = names_in(name.block);
    const auto found = names.find(name.layer);
    if (found == names.end()) {
      // In a block of ours, where whoever compares names finds it without a place.
      tensors_[name.block.empty() ? full : text_of(name.block, name.layer, name.kind)] = {full};
      return;
    }
    auto& tensor = tensors_[text_of(name.block, found->second, name.kind)] = {full};
    if (found->second != "norm_out.linear") return;
    const int64_t rows = rows_of(full), half = rows / 2;  // theirs: shift, scale
    tensor.rows = {{half, rows}, {0, half}};
  }

  void add_packed(const std::string& full, const Name& name, const std::vector<std::string>& layers) {
    const int64_t rows = rows_of(full), count = static_cast<int64_t>(layers.size());
    check<CheckpointError>(width_ > 0 && rows >= (count - 1) * width_, checkpoint_.path().string(), ": tensor '", full,
                           "' has ", rows, " rows, too few for ", joined(layers), " of ", width_,
                           " each. It is not FLUX's, or is damaged.");
    for (int64_t i = 0; i < count; ++i) {
      const int64_t end = i + 1 == count ? rows : (i + 1) * width_;
      tensors_[text_of(name.block, layers[static_cast<size_t>(i)], name.kind)] = {full, {{i * width_, end}}};
    }
  }

  int64_t rows_of(const std::string& name) const {
    const auto& shape = checkpoint_.info(name).shape;
    return shape.empty() ? 0 : shape.front();
  }

  const Checkpoint& checkpoint_;
  int64_t width_ = 0;  // of the streams
  std::map<std::string, OriginalTensor> tensors_;
};

}  // namespace

bool is_original_flux(const Checkpoint& checkpoint) {
  return checkpoint.contains("double_blocks.0.img_attn.qkv.weight") ||
         checkpoint.contains(text_of(kPrefix, "double_blocks.0.img_attn.qkv.weight"));
}

std::map<std::string, OriginalTensor> tensors_of_original_flux(const Checkpoint& checkpoint) {
  return Renamed(checkpoint).run();
}

}  // namespace pardiff
