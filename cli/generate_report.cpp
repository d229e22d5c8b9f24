#include "cli/generate_report.h"

#include <pardiff/core/dtype_name.h>
#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/subcommand.h"

namespace pardiff::cli {
namespace {

using Json = nlohmann::ordered_json;

int64_t peak_rss_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

Json json_of(const std::map<std::string, OperationCount>& counts) {
  auto json = Json::object();
  for (const auto& [operation, count] : counts) {
    json[operation] = {{"calls", count.calls}, {"bytes_sent", count.bytes_sent}};
  }
  return json;
}

// A path need not be UTF-8, which JSON must be.
std::string text_of_json(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string dtype_text(std::optional<at::ScalarType> dtype) { return dtype ? dtype_name(*dtype) : "file"; }

// What the pixels depend on, but for rounding.
Json picture_config(const GenerateFlags& flags, std::optional<at::ScalarType> dtype, const FluxPipelineOutput& output) {
  Json json = {{"model", flags.model},
               {"prompt", flags.prompts},
               {"height", output.height},
               {"width", output.width},
               {"steps", output.num_inference_steps},
               {"guidance_scale", flags.guidance_scale},
               {"max_sequence_length", flags.max_sequence_length},
               {"num_images", flags.num_images},
               {"seed", output.seeds.empty() ? Json(nullptr) : Json(output.seeds.front())},
               {"dtype", dtype_text(dtype)}};
  if (!flags.variant.empty()) json["variant"] = flags.variant;
  if (!flags.transformer.empty()) json["transformer"] = flags.transformer.string();
  if (!flags.prompts_2.empty()) json["prompt_2"] = flags.prompts_2;
  if (!flags.negative_prompts.empty()) json["negative_prompt"] = flags.negative_prompts;
  if (flags.true_cfg_scale != 1.0) json["true_cfg_scale"] = flags.true_cfg_scale;
  return json;
}

void add_parallelism(Json& json, const GenerateFlags& flags, const RankLayout& layout) {
  json["ranks"] = layout.ranks;
  json["ring_degree"] = flags.ranks.ring_degree.value_or(1);
  json["ulysses_degree"] = flags.ranks.ulysses_degree.value_or(1);
  json["tp_degree"] = flags.ranks.tp_degree.value_or(1);
  json["cfg_degree"] = flags.ranks.cfg_degree.value_or(1);
  json["dp_degree"] = flags.ranks.dp_degree.value_or(1);
  json["fsdp_degree"] = flags.ranks.fsdp_degree.value_or(1);
  json["shard_weights_over"] = layout.parallel ? layout.parallel->weight_axes() : std::vector<std::string>();
  json["rotate_method"] = flags.ranks.rotate_method;
  json["convert_to_fp32"] = !flags.ranks.no_convert_to_fp32;
  json["ulysses_anything"] = flags.ranks.ulysses_anything;
  json["ring_anything"] = flags.ranks.ring_anything;
}

// What the last bits depend on too, by the flags' names; what is as usual is left out.
void add_what_rounds(Json& json, const GenerateFlags& flags, const RankLayout& layout, const World& world) {
  json["device"] = world.device().is_cuda() ? "cuda" : "cpu";
  json["threads"] = world.threads();
  if (!flags.attention_backend.empty()) json["attention_backend"] = flags.attention_backend;
  if (layout.ranks > 1) json["comm"] = world.group().transport();
  const auto& ranks = flags.ranks;
  for (const auto& [name, degree] : {std::pair{"ring_degree", ranks.ring_degree},
                                     {"ulysses_degree", ranks.ulysses_degree},
                                     {"tp_degree", ranks.tp_degree},
                                     {"cfg_degree", ranks.cfg_degree},
                                     {"dp_degree", ranks.dp_degree},
                                     {"fsdp_degree", ranks.fsdp_degree}}) {
    if (degree.value_or(1) > 1) json[name] = *degree;
  }
  if (!ranks.shard_weights_over.empty()) json["shard_weights_over"] = ranks.shard_weights_over;
  if (ranks.rotate_method != RankFlags().rotate_method) json["rotate_method"] = ranks.rotate_method;
  for (const auto& [name, is_set] : {std::pair{"ulysses_anything", ranks.ulysses_anything},
                                     {"ring_anything", ranks.ring_anything},
                                     {"no_convert_to_fp32", ranks.no_convert_to_fp32}}) {
    if (is_set) json[name] = true;
  }
}

Json rank_report(const FluxPipelineOutput& output, const World& world) {
  const auto& seconds = output.seconds;
  return {{"rank", world.rank()},
          {"peak_rss_bytes", peak_rss_bytes()},
          {"parameter_bytes", output.parameters.total},
          {"private_weight_bytes", output.parameters.private_bytes},
          {"transformer_parameter_bytes", output.transformer_parameter_bytes},
          {"peak_transformer_parameter_bytes", output.peak_transformer_parameter_bytes},
          {"transformer_bytes_copied", output.transformer_bytes_copied},
          {"peak_remote_kv_bytes", output.peak_remote_kv_bytes},
          {"latents_sha256", output.latents_sha256},
          {"communication", json_of(output.communication)},
          {"communication_total", json_of(output.communication_total)},
          // Taken out again below: the whole run's times are those of its slowest rank.
          {"seconds",
           {{"load", seconds.load},
            {"encode", seconds.encode},
            {"prepare", seconds.prepare},
            {"denoise", seconds.denoise},
            {"decode", seconds.decode}}},
          {"step_seconds", output.step_seconds}};
}

}  // namespace

RunReport gather_report(const GenerateFlags& flags, const RankLayout& layout, std::optional<at::ScalarType> dtype,
                        const FluxPipelineOutput& output, World& world) {
  auto config = picture_config(flags, dtype, output);
  config["device"] = world.device().str();
  config["transport"] = world.group().transport();
  config["threads"] = world.threads();
  config["attention_backend"] = flags.attention_backend.empty() ? "native" : flags.attention_backend;
  add_parallelism(config, flags, layout);
  return {text_of_json(config), world.texts_of_all(rank_report(output, world).dump())};
}

std::string RunReport::to_json(std::chrono::steady_clock::time_point started) const {
  auto seconds = Json::object();
  std::vector<double> step_seconds;
  auto rows = Json::array();
  for (const auto& text : ranks) {
    auto row = Json::parse(text);
    for (const auto& [phase, value] : row["seconds"].items()) {
      seconds[phase] = std::max(seconds.value(phase, 0.0), value.get<double>());
    }
    const auto steps = row["step_seconds"].get<std::vector<double>>();
    step_seconds.resize(std::max(step_seconds.size(), steps.size()));
    for (size_t i = 0; i < steps.size(); ++i) step_seconds[i] = std::max(step_seconds[i], steps[i]);
    row.erase("seconds");
    row.erase("step_seconds");
    rows.push_back(row);
  }
  seconds["total"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  const Json report = {{"version", version_line().substr(version_line().find(' ') + 1)},
                       {"config", Json::parse(config)},
                       {"seconds", seconds},
                       {"step_seconds", step_seconds},
                       {"ranks", rows}};
  return report.dump(2) + "\n";
}

std::vector<std::pair<std::string, std::string>> picture_text(const GenerateFlags& flags, const RankLayout& layout,
                                                              std::optional<at::ScalarType> dtype,
                                                              const FluxPipelineOutput& output, const World& world,
                                                              const PictureOrigin& origin, int64_t index) {
  auto parameters = picture_config(flags, dtype, output);
  add_what_rounds(parameters, flags, layout, world);
  parameters["checkpoint"] = origin.checkpoint;
  parameters["made_with"] = origin.made_with;
  if (output.images.size() > 1) parameters["index"] = index;
  const auto prompt = flags.prompts[static_cast<size_t>(index / flags.num_images)];
  return {{"Software", version_line()}, {"Description", prompt}, {"parameters", text_of_json(parameters)}};
}

}  // namespace pardiff::cli
