#include "parity/pipeline/golden_run.h"

#include <ATen/ATen.h>
#include <pardiff/pipelines/diffusion_pipeline.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/golden.h"

namespace pardiff::testing {
namespace {

using Json = nlohmann::json;

// The largest of this many is within half of the largest of many more.
constexpr int64_t kMoves = 16;

Json case_of(const std::string& name) {
  std::ifstream file(data_path("golden/manifest.json"));
  const auto manifest = Json::parse(file);
  for (const auto& one : manifest.at("cases")) {
    if (one.at("name") == name) return one;
  }
  throw std::runtime_error("manifest.json has no case " + name);
}

Prompts texts(const Json& arguments, const char* key) {
  if (!arguments.contains(key)) return {};
  const auto& value = arguments.at(key);
  return value.is_array() ? Prompts(value.get<std::vector<std::string>>()) : Prompts(value.get<std::string>());
}

FluxPipelineInputs inputs_of(const Json& one) {
  const auto& arguments = one.at("args");
  FluxPipelineInputs inputs;
  inputs.prompt = texts(arguments, "prompt");
  inputs.negative_prompt = texts(arguments, "negative_prompt");
  inputs.true_cfg_scale = arguments.value("true_cfg_scale", 1.0);
  inputs.height = arguments.at("height").get<int64_t>();
  inputs.width = arguments.at("width").get<int64_t>();
  inputs.num_inference_steps = arguments.at("num_inference_steps");
  inputs.guidance_scale = arguments.at("guidance_scale");
  inputs.num_images_per_prompt = arguments.value("num_images_per_prompt", 1);
  inputs.seed = one.at("seed").get<int64_t>();
  inputs.max_sequence_length = arguments.at("max_sequence_length");
  return inputs;
}

at::Tensor with_last_bits_moved(const at::Tensor& noise, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  const auto towards = (at::rand_like(noise) - 0.5) * std::numeric_limits<float>::infinity();
  return at::nextafter(noise, towards);
}

}  // namespace

const RoundingReach& rounding_reach(const std::string& name) {
  static std::map<std::string, RoundingReach> known;
  if (const auto found = known.find(name); found != known.end()) return found->second;
  const GoldenRun golden(name);
  const auto noise = golden.transformer_inputs().at("hidden_states");
  World alone({.device = "cpu", .threads = 1});
  auto pipeline = DiffusionPipeline::from_pretrained(model_path("flux-shapes"), alone, {.dtype = at::kFloat});
  const auto run_from = [&](const at::Tensor& latents) {
    auto inputs = golden.inputs();
    inputs.latents = latents;
    return pipeline.generate(inputs, {.keep_latents = true});
  };
  const auto expected = run_from(noise);
  RoundingReach reach{.latents = std::vector<double>(expected.latents.size(), 0.0)};
  for (int64_t seed = 0; seed < kMoves; ++seed) {
    const auto moved = run_from(with_last_bits_moved(noise, seed));
    reach.image = std::max(reach.image, absolute_error(moved.image, expected.image));
    for (size_t step = 0; step < reach.latents.size(); ++step) {
      reach.latents[step] = std::max(reach.latents[step], absolute_error(moved.latents[step], expected.latents[step]));
    }
  }
  return known[name] = reach;
}

double picture_tolerance(const std::string& name) { return std::max(1e-5, 2 * rounding_reach(name).image); }

GoldenRun::GoldenRun(const std::string& name)
    : file_(SafetensorsFile::open(data_path("golden/" + name + ".safetensors"))), inputs_(inputs_of(case_of(name))) {}

std::map<std::string, at::Tensor> GoldenRun::transformer_inputs() const {
  const std::string prefix = "in.";
  std::map<std::string, at::Tensor> inputs;
  for (const auto& info : file_.tensors()) {
    if (info.name.starts_with(prefix)) inputs[info.name.substr(prefix.size())] = file_.tensor(info.name);
  }
  return inputs;
}

}  // namespace pardiff::testing
