#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <pardiff/core/error.h>
#include <pardiff/core/log.h>
#include <pardiff/io/checkpoint.h>
#include <pardiff/io/safetensors.h>
#include <pardiff/pipelines/auto_model.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "support/golden.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kSeed = 20'240'501;

struct PartName {
  const char* folder;
  const char* stem;
  /// The fields that the tensors' shapes and names determine.
  std::vector<std::string> shape_fields;
};

const std::vector<PartName> kParts = {
    {"transformer",
     "diffusion_pytorch_model",
     {"attention_head_dim", "in_channels", "joint_attention_dim", "num_attention_heads", "num_layers",
      "num_single_layers", "pooled_projection_dim", "guidance_embeds"}},
    {"vae", "diffusion_pytorch_model", {"latent_channels", "layers_per_block", "out_channels"}},
    {"text_encoder",
     "model",
     {"hidden_size", "intermediate_size", "max_position_embeddings", "num_hidden_layers", "vocab_size"}},
    {"text_encoder_2",
     "model",
     {"d_ff", "d_kv", "d_model", "num_heads", "num_layers", "relative_attention_num_buckets", "vocab_size"}},
};

// A part of flux-shapes in shards with an index, whose files are broken one at a time and mended again.
class BreakablePart {
 public:
  explicit BreakablePart(const PartName& name) : name_(name) {
    const fs::path original = fs::path(model_path("flux-shapes")) / name.folder;
    const auto checkpoint = Checkpoint::open(original, name.stem);
    std::vector<NamedTensor> tensors;
    for (const auto& tensor : checkpoint.names()) tensors.push_back({tensor, checkpoint.tensor(tensor)});
    save_checkpoint(folder_.path(), name.stem, tensors, checkpoint.total_bytes() / 2);
    fs::copy_file(original / "config.json", folder_ / "config.json");
    for (const auto& file : folder_.names()) contents_[file] = content_of(folder_ / file);
    whole_ = load();
  }

  std::shared_ptr<Model> load() const {
    static World alone({.device = "cpu"});
    return AutoModel::from_pretrained(folder_.path().string(), alone);
  }

  // What the fault was, for messages.
  std::string break_something(std::mt19937& random) {
    auto file = std::next(contents_.begin(), static_cast<std::ptrdiff_t>(random() % contents_.size()));
    broken_ = file->first;
    std::string content = file->second;
    std::string fault;
    if (broken_ == "config.json") {
      fault = break_config(content, random);
    } else {
      fault = break_bytes(content, random);
    }
    replace(content);
    return std::string(name_.folder) + "/" + broken_ + ": " + fault;
  }
  void mend() const { replace(contents_.at(broken_)); }

  // A config that is not whole, or that contradicts the tensors' shapes.
  bool last_fault_counts() const { return broken_ == "config.json" && !is_harmless_; }

  // Same names, dtypes and values.
  bool is_whole(const Model& model) const {
    const auto expected = whole_->named_parameters();
    const auto actual = model.named_parameters();
    return actual.size() == expected.size() &&
           std::all_of(expected.begin(), expected.end(), [&](const auto& parameter) {
             const auto* found = actual.find(parameter.key());
             return found != nullptr && found->scalar_type() == parameter.value().scalar_type() &&
                    at::equal(*found, parameter.value());
           });
  }

 private:
  // By name: what is mapped of the old file stays as it is.
  void replace(const std::string& content) const {
    fs::remove(folder_ / broken_);
    put(folder_ / broken_, content);
  }

  // The header of a weights file, or the whole index.
  std::string break_bytes(std::string& content, std::mt19937& random) const {
    uint64_t length = content.size();
    if (broken_.ends_with(".safetensors")) {
      std::memcpy(&length, content.data(), 8);
      length += 8;
    }
    if (random() % 4 == 0) {
      content.resize(random() % (random() % 2 == 0 ? length : content.size()));
      return "cut to " + std::to_string(content.size()) + " bytes";
    }
    const std::size_t place = random() % length;
    const auto byte = static_cast<char>(static_cast<unsigned char>(content[place]) ^ (1 + random() % 255));
    content[place] = byte;
    return "byte " + std::to_string(place) + " became " + std::to_string(static_cast<unsigned char>(byte));
  }

  std::string break_config(std::string& content, std::mt19937& random) {
    is_harmless_ = false;
    if (random() % 4 == 0) {
      content.resize(random() % content.rfind('}'));
      return "cut to " + std::to_string(content.size()) + " bytes";
    }
    auto config = nlohmann::json::parse(content);
    const auto& key = name_.shape_fields[random() % name_.shape_fields.size()];
    const auto before = config.at(key);
    if (random() % 2 == 0) {
      const std::vector<nlohmann::json> others = {"text", {1, 2}, {{"a", 1}}, 0.5, -1, int64_t{1} << 62, 1e300};
      config[key] = others[random() % others.size()];
    } else if (config[key].is_boolean()) {
      config[key] = !config[key].get<bool>();
    } else {
      const auto value = config[key].get<int64_t>();
      const std::vector<int64_t> others = {0, value - 1, value + 1, 2 * value, 1000 * value};
      config[key] = others[random() % others.size()];
    }
    content = config.dump();
    is_harmless_ = config[key] == before;
    return key + " became " + config[key].dump();
  }

  const PartName& name_;
  TemporaryFolder folder_;
  std::map<std::string, std::string> contents_;
  std::string broken_;
  bool is_harmless_ = false;  // of a config: nothing was changed
  std::shared_ptr<Model> whole_;
};

// Warnings of 2,000 faults help nobody.
class Quiet {
 public:
  Quiet() { set_log_level(LogLevel::kQuiet); }
  ~Quiet() { set_log_level(before_); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  LogLevel before_ = log_level();
};

// Every fault is refused with a message, or changes nothing that counts.
TEST(CorruptCheckpoint, TwoThousandFaultsNeverGetIn) {
  constexpr int kFaults = 2000;
  const Quiet quiet;
  std::mt19937 random(kSeed);
  int refused = 0;
  for (const auto& name : kParts) {
    BreakablePart part(name);
    for (int i = 0; i < kFaults / static_cast<int>(kParts.size()); ++i) {
      const auto fault = part.break_something(random);
      try {
        EXPECT_TRUE(part.is_whole(*part.load())) << fault;
        EXPECT_FALSE(part.last_fault_counts()) << fault << " was believed";
      } catch (const Error& error) {
        ++refused;
        EXPECT_GT(std::strlen(error.what()), 20u) << fault;
        EXPECT_LT(std::strlen(error.what()), 2000u) << fault;
      } catch (const std::exception& error) {
        ADD_FAILURE() << fault << ": refused by another layer: " << error.what();
      }
      part.mend();
    }
    EXPECT_TRUE(part.is_whole(*part.load())) << name.folder;
  }
  EXPECT_GT(refused, kFaults * 3 / 4);
  std::cout << refused << " of " << kFaults << " faults were refused, the others changed nothing that counts\n";
}

}  // namespace
}  // namespace pardiff::testing
