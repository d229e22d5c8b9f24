// The input's first byte chooses the kind of file that the rest is: an index of shards, or a part's configuration.
#include <pardiff/io/checkpoint.h>
#include <pardiff/io/config_file.h>
#include <pardiff/models/autoencoder_kl.h>
#include <pardiff/models/clip_text_encoder.h>
#include <pardiff/models/flux_transformer.h>
#include <pardiff/models/t5_encoder.h>
#include <pardiff/schedulers/flow_match_euler.h>

#include "fuzz/input.h"
#include "io/safetensors_header.h"

namespace {

using namespace pardiff;

std::string shard_with(const std::string& name) {
  TensorInfo tensor{.name = name, .shape = {2}, .begin = 0, .end = 8};
  return write_safetensors_header({tensor}, {}) + std::string(8, '\0');
}

// Two shards lie beside the index: what it says of them may be true or not.
const std::filesystem::path& folder_with_shards() {
  static const std::filesystem::path folder = [] {
    const auto path = fuzz::scratch_folder() / "part";
    std::filesystem::create_directories(path);
    pardiff::testing::put(path / "model-00001-of-00002.safetensors", shard_with("a.weight"));
    pardiff::testing::put(path / "model-00002-of-00002.safetensors", shard_with("b.weight"));
    return path;
  }();
  return folder;
}

void read_index(const std::string& text) {
  const auto& folder = folder_with_shards();
  pardiff::testing::put(folder / "model.safetensors.index.json", text);
  const auto checkpoint = Checkpoint::open(folder, "model");
  for (const auto& name : checkpoint.names()) (void)checkpoint.info(name);
}

template <typename Config>
void read_config(const std::string& text) {
  const auto file = ConfigFile::parse(text, "config.json");
  (void)Config::from_file(file);
}

void read_model_index(const std::string& text) {
  const auto file = ConfigFile::parse(text, "model_index.json");
  (void)file.class_name();
  for (const auto& key : file.keys()) {
    if (!key.starts_with('_')) (void)file.component(key);
  }
}

void read(const std::string& input) {
  const auto text = input.substr(1);
  switch (input[0]) {
    case 'i':
      return read_index(text);
    case 'm':
      return read_model_index(text);
    case 'f':
      return read_config<FluxTransformerConfig>(text);
    case 'v':
      return read_config<AutoencoderKLConfig>(text);
    case 'c':
      return read_config<ClipTextConfig>(text);
    case 't':
      return read_config<T5Config>(text);
    case 's':
      return read_config<FlowMatchEulerConfig>(text);
    default:
      return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string input(fuzz::text_of_input(data, size));
  fuzz::expect_refusal_or_success([&] { read(input); });
  return 0;
}
