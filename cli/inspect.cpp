#include <pardiff/core/check.h>
#include <pardiff/core/dtype_name.h>
#include <pardiff/io/model_folder.h>
#include <pardiff/pipelines/part_classes.h>
#include <pardiff/schedulers/flow_match_euler.h>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <regex>

#include "cli/flags.h"
#include "cli/parts.h"
#include "cli/subcommand.h"

namespace pardiff::cli {
namespace {

struct InspectFlags {
  std::string model, variant;
};

constexpr size_t kMostLines = 20;  // of one kind of finding

void print_some(const std::vector<std::string>& lines, const std::string& prefix) {
  for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) std::cout << "    " << prefix << lines[i] << "\n";
  if (lines.size() > kMostLines) std::cout << "    ... and " << lines.size() - kMostLines << " more\n";
}

std::string dtypes_text(const Checkpoint& checkpoint) {
  std::map<std::string, int64_t> elements;
  for (const auto& name : checkpoint.names()) {
    const auto& info = checkpoint.info(name);
    elements[dtype_name(info.dtype)] += c10::multiply_integers(info.shape);
  }
  std::vector<std::string> parts;
  for (const auto& [dtype, count] : elements) parts.push_back(dtype);
  return joined(parts, "+");
}

int64_t parameter_count(const Checkpoint& checkpoint) {
  int64_t count = 0;
  for (const auto& name : checkpoint.names()) count += c10::multiply_integers(checkpoint.info(name).shape);
  return count;
}

struct Totals {
  int64_t parameters = 0, bytes = 0;
  bool sound = true;
};

void print_row(const std::string& name, const std::string& class_name, const std::string& rest) {
  std::cout << std::left << std::setw(16) << name << std::setw(34) << class_name << rest << "\n";
}

std::string weights_text(const Checkpoint& checkpoint) {
  const auto files = checkpoint.files().size();
  return text_of(count_text(parameter_count(checkpoint)), " parameters in ", checkpoint.names().size(), " tensors, ",
                 dtypes_text(checkpoint), ", ", bytes_text(checkpoint.total_bytes()), ", ", files,
                 files == 1 ? " file" : " shards");
}

// "diffusion_pytorch_model-00001-of-00002.safetensors", of a save that another has replaced.
bool is_shard(const std::string& file) {
  static const std::regex pattern(R"(.*-\d{5}-of-\d{5}\.safetensors)");
  return std::regex_match(file, pattern);
}

void print_strays(const Checkpoint& checkpoint) {
  std::vector<std::string> stale, strays;
  for (const auto& file : checkpoint.stray_files()) (is_shard(file) ? stale : strays).push_back(file);
  print_some(stale, "stale shard, not read: ");
  print_some(strays, "stray file, not read: ");
}

void add(Totals& totals, const Checkpoint& checkpoint) {
  totals.parameters += parameter_count(checkpoint);
  totals.bytes += checkpoint.total_bytes();
}

void print_findings(const BlankModel& blank, const Checkpoint& checkpoint, Totals& totals) {
  const auto findings = compare(blank, checkpoint);
  print_some(findings.wrong, "");
  print_some(findings.unused, "not used: ");
  if (!findings.wrong.empty()) totals.sound = false;
}

void inspect_weights(const Part& part, const Part::Weights& weights, const std::string& wanted, Totals& totals) {
  const auto checkpoint = Checkpoint::open(part.folder, weights.stem, weights.variant);
  add(totals, checkpoint);
  print_row(part.name.empty() ? "." : part.name, part.class_name, weights_text(checkpoint));
  if (weights.variant != wanted) std::cout << "    no files of variant " << wanted << ": these are the plain ones\n";
  print_strays(checkpoint);
  const auto blank = blank_model(part.class_name, ConfigFile::open(part.folder / "config.json"));
  if (!blank.model) {
    std::cout << "    class " << part.class_name << " is not one that pardiff runs\n";
    totals.sound = false;
    return;
  }
  print_findings(blank, checkpoint, totals);
}

// A transformer in one file, which generate takes with --transformer.
void inspect_file(const std::filesystem::path& path, Totals& totals) {
  const auto checkpoint = Checkpoint::open_file(path);
  add(totals, checkpoint);
  const auto blank = blank_transformer_of(checkpoint);
  print_row("transformer", blank.model ? blank.model->class_name() : "unknown", weights_text(checkpoint));
  if (!blank.model) {
    std::cout << "    its tensors are not those of a transformer that pardiff runs\n";
    return;
  }
  std::cout << "    names of " << (is_original_layout(checkpoint) ? "FLUX's first publication" : "diffusers")
            << "; for generate --transformer\n";
  print_findings(blank, checkpoint, totals);
}

void inspect_part(const Part& part, const std::string& variant, Totals& totals) {
  std::error_code ignored;
  if (const auto weights = part.weights(variant)) return inspect_weights(part, *weights, variant, totals);
  const bool exists = std::filesystem::is_directory(part.folder, ignored);
  const bool needs_weights = exists && std::filesystem::exists(part.folder / "config.json", ignored);
  print_row(part.name, part.class_name, !exists ? "missing folder" : needs_weights ? "missing weights" : "no weights");
  if (!exists || needs_weights) totals.sound = false;
}

// What generate would refuse of model_index.json and of the parts without weights.
void inspect_classes(const std::filesystem::path& folder, Totals& totals) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "model_index.json", ignored)) return;
  const auto wrong = [&](const std::string& text) {
    std::cout << "    " << text << "\n";
    totals.sound = false;
  };
  const auto index = ConfigFile::open(folder / "model_index.json");
  const auto pipeline = index.class_name();
  if (pipeline != "FluxPipeline") return wrong(text_of("a ", pipeline, " is not a pipeline that pardiff runs"));
  for (const auto& part : foreign_parts(index)) {
    wrong(text_of(part.name, " is ", part.class_name, ", and FluxPipeline takes ", joined(part.takes, " or ")));
  }
  const auto scheduler = folder / "scheduler" / "scheduler_config.json";
  if (std::filesystem::exists(scheduler, ignored)) FlowMatchEulerConfig::from_file(ConfigFile::open(scheduler));
}

void inspect_folder(const std::filesystem::path& folder, const std::string& variant, Totals& totals) {
  const auto parts = parts_of(folder);
  check_variant(parts, variant);
  for (const auto& part : parts) {
    try {
      inspect_part(part, variant, totals);
    } catch (const CheckpointError& error) {
      print_row(part.name, part.class_name, error.what());
      totals.sound = false;
    }
  }
  try {
    inspect_classes(folder, totals);
  } catch (const CheckpointError& error) {
    std::cout << "    " << error.what() << "\n";
    totals.sound = false;
  }
}

int inspect(const InspectFlags& flags) {
  Totals totals;
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(flags.model, ignored);
  const auto path = is_file ? std::filesystem::path(flags.model) : resolve_model(flags.model);
  if (is_file) {
    inspect_file(path, totals);
  } else {
    inspect_folder(path, flags.variant, totals);
  }
  print_row("total", "", text_of(count_text(totals.parameters), " parameters, ", bytes_text(totals.bytes)));
  std::cout.flush();  // the list above the error, also where both go into one file
  check<CheckpointError>(totals.sound, path.string(), " is not complete; the list above says what is wrong.");
  return 0;
}

}  // namespace

Action declare_inspect(Flags& declared) {
  auto flags = std::make_shared<InspectFlags>();
  declared.group("Flags", "pardiff inspect models/flux-shapes")
      .argument("DIR", flags->model,
                "A checkpoint's folder, a repository id in the local Hugging Face cache, or a transformer in one file")
      .text("--variant", flags->variant, "Read the files of this variant, such as fp16");
  return [flags] { return inspect(*flags); };
}

}  // namespace pardiff::cli
