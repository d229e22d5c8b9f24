#include "parity/pipeline/golden_run.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/golden.h"

namespace pardiff::testing {
namespace {

using Json = nlohmann::json;

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

}  // namespace

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
