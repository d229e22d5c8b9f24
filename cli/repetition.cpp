#include "cli/repetition.h"

#include <ATen/Version.h>
#include <pardiff/core/check.h>
#include <pardiff/io/checkpoint_digest.h>
#include <pardiff/io/image.h>
#include <torch/version.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/config.h"
#include "cli/flags.h"
#include "cli/generate_flags.h"
#include "cli/machine.h"
#include "cli/parts.h"
#include "cli/subcommand.h"

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kLayoutFlags[] = {"--nproc-per-node", "--ring-degree",        "--ulysses-degree",
                                        "--tp-degree",      "--cfg-degree",         "--dp-degree",
                                        "--fsdp-degree",    "--shard-weights-over", "--ulysses-anything",
                                        "--ring-anything",  "--rotate-method",      "--no-convert-to-fp32"};
constexpr const char* kBatchFlags[] = {"--prompt", "--prompt-file", "--num-images"};
// None of these changes a pixel.
constexpr const char* kHarmlessFlags[] = {"--from",   "--output",  "--contact-sheet", "--preview",
                                          "--report", "--trace",   "--dump-tensors",  "--quiet",
                                          "--debug",  "--verbose", "--timeout"};

std::string key_of(std::string flag) {
  flag = flag.substr(2);
  std::replace(flag.begin(), flag.end(), '-', '_');
  return flag;
}

template <typename Names>
bool any_given(const Flags& flags, const Names& names) {
  return std::any_of(std::begin(names), std::end(names), [&](const char* name) { return flags.is_given(name); });
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::string> texts_in(const Json& parameters, const char* key) {
  std::map<std::string, std::string> texts;
  if (!parameters.contains(key) || !parameters[key].is_object()) return texts;
  for (const auto& [name, value] : parameters[key].items()) {
    if (value.is_string()) texts[name] = value.get<std::string>();
  }
  return texts;
}

Json parameters_in(const fs::path& picture) {
  const auto text = Image::read_text(picture);
  const auto found = text.find("parameters");
  const auto parameters = found == text.end() ? Json() : Json::parse(found->second, nullptr, false);
  check<UsageError>(parameters.is_object() && parameters.contains("prompt"), picture.string(),
                    " carries no parameters that pardiff wrote: it cannot be repeated. Give --model and --prompt.");
  return parameters;
}

}  // namespace

PictureOrigin PictureOrigin::here(const fs::path& folder, const std::string& variant, const fs::path& transformer) {
  PictureOrigin origin;
  for (const auto& part : parts_of(folder)) {
    const bool is_file = !transformer.empty() && part.name == "transformer";
    origin.checkpoint[part.name] =
        is_file ? digest_of(Checkpoint::open_file(transformer)).substr(0, 16) : digest_of_part(part, variant);
  }
  const auto version = version_line();
  origin.made_with = {{"pardiff", version.substr(version.find(' ') + 1)},
                      {"torch", TORCH_VERSION},
                      {"cpu", text_of(processor_name(), ", ", at::get_cpu_capability())}};
  return origin;
}

Repetition::Repetition(Flags& declared, GenerateFlags& flags)
    : from_(flags.from),
      names_model_(declared.is_given("--model") || declared.is_given("--variant") ||
                   declared.is_given("--transformer")) {
  auto parameters = parameters_in(from_);
  before_ = content_of(from_);
  origin_ = {texts_in(parameters, "checkpoint"), texts_in(parameters, "made_with")};
  for (const auto& name : declared.names()) {
    const auto* const* end = std::end(kHarmlessFlags);
    if (declared.is_given(name) && std::find(std::begin(kHarmlessFlags), end, name) == end) is_changed_ = true;
  }
  const bool same_batch = !any_given(declared, kBatchFlags);
  if (same_batch && parameters.contains("index") && parameters["index"].is_number_integer()) {
    flags.only = parameters["index"].get<int64_t>();
  }
  if (parameters.value("dtype", "") == "file") parameters["dtype"] = "auto";
  std::set<std::string> passed_over = {"checkpoint", "made_with", "index"};
  if (any_given(declared, kLayoutFlags)) {
    for (const char* flag : kLayoutFlags) passed_over.insert(key_of(flag));
    if (!declared.is_given("--comm")) passed_over.insert("comm");
  }
  give_values(declared, ConfigFile::parse(parameters.dump(), from_.string()), passed_over);
  const auto pictures = static_cast<int64_t>(flags.prompts.size()) * flags.num_images;
  check<UsageError>(!flags.only || (*flags.only >= 0 && *flags.only < pictures), from_.string(), " says it is number ",
                    flags.only.value_or(0), " of ", pictures, " pictures. Its parameters are damaged.");
}

std::vector<std::string> Repetition::differences(const PictureOrigin& here) const {
  std::vector<std::string> parts, lines;
  for (const auto& [part, digest] : origin_.checkpoint) {
    const auto found = here.checkpoint.find(part);
    if (found == here.checkpoint.end() || found->second != digest) parts.push_back(part);
  }
  if (!parts.empty()) {
    const auto what = text_of(from_.string(), " was made from another checkpoint: ", joined(parts),
                              parts.size() == 1 ? " differs" : " differ");
    check<CheckpointError>(names_model_, what,
                           ". Give the folder of that one with --model; with the flag any other is taken too.");
    lines.push_back(text_of(what, "."));
  }
  for (const auto& [what, was] : origin_.made_with) {
    const auto found = here.made_with.find(what);
    if (found == here.made_with.end() || found->second == was) continue;
    lines.push_back(text_of(from_.string(), " was made with ", what, " ", was, ", and this is ", found->second,
                            ": the last bits may differ."));
  }
  return lines;
}

std::string Repetition::outcome(const fs::path& written) const {
  if (is_changed_ || written.extension() != from_.extension()) return "";
  return text_of(written.string(), content_of(written) == before_ ? " is " : " is not ", from_.string(),
                 ", byte for byte");
}

}  // namespace pardiff::cli
