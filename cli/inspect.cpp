#include <pardiff/core/check.h>
#include <pardiff/io/model_folder.h>

#include <iomanip>
#include <iostream>
#include <map>
#include <memory>

#include "cli/dtype.h"
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

void inspect_weights(const Part& part, const Part::Weights& weights, const std::string& wanted, Totals& totals) {
  const auto checkpoint = Checkpoint::open(part.folder, weights.stem, weights.variant);
  const auto files = checkpoint.files();
  totals.parameters += parameter_count(checkpoint);
  totals.bytes += checkpoint.total_bytes();
  print_row(part.name.empty() ? "." : part.name, part.class_name,
            text_of(count_text(parameter_count(checkpoint)), " parameters in ", checkpoint.names().size(), " tensors, ",
                    dtypes_text(checkpoint), ", ", bytes_text(checkpoint.total_bytes()), ", ", files.size(),
                    files.size() == 1 ? " file" : " shards"));
  if (weights.variant != wanted) std::cout << "    no files of variant " << wanted << ": these are the plain ones\n";
  print_some(checkpoint.stray_files(), "stray file, not read: ");
  const auto blank = blank_model(part.class_name, ConfigFile::open(part.folder / "config.json"));
  if (!blank.model) {
    std::cout << "    class " << part.class_name << " is not one that pardiff runs\n";
    return;
  }
  const auto findings = compare(blank, checkpoint);
  print_some(findings.wrong, "");
  print_some(findings.unused, "not used: ");
  if (!findings.wrong.empty()) totals.sound = false;
}

void inspect_part(const Part& part, const std::string& variant, Totals& totals) {
  std::error_code ignored;
  if (const auto weights = part.weights(variant)) return inspect_weights(part, *weights, variant, totals);
  const bool exists = std::filesystem::is_directory(part.folder, ignored);
  const bool needs_weights = exists && std::filesystem::exists(part.folder / "config.json", ignored);
  print_row(part.name, part.class_name, !exists ? "missing folder" : needs_weights ? "missing weights" : "no weights");
  if (!exists || needs_weights) totals.sound = false;
}

int inspect(const InspectFlags& flags) {
  const auto folder = resolve_model(flags.model);
  Totals totals;
  const auto parts = parts_of(folder);
  check_variant(parts, flags.variant);
  for (const auto& part : parts) {
    try {
      inspect_part(part, flags.variant, totals);
    } catch (const CheckpointError& error) {
      print_row(part.name, part.class_name, error.what());
      totals.sound = false;
    }
  }
  print_row("total", "", text_of(count_text(totals.parameters), " parameters, ", bytes_text(totals.bytes)));
  std::cout.flush();  // the list above the error, also where both go into one file
  check<CheckpointError>(totals.sound, folder.string(), " is not complete; the list above says what is wrong.");
  return 0;
}

}  // namespace

Action declare_inspect(Flags& declared) {
  auto flags = std::make_shared<InspectFlags>();
  declared.group("Flags", "pardiff inspect models/flux-shapes")
      .argument("DIR", flags->model, "A checkpoint's folder, or a repository id in the local Hugging Face cache")
      .text("--variant", flags->variant, "Read the files of this variant, such as fp16");
  return [flags] { return inspect(*flags); };
}

}  // namespace pardiff::cli
