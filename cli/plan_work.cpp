#include "cli/plan_work.h"

#include <pardiff/core/check.h>

#include <algorithm>

namespace pardiff::cli {
namespace {

namespace fs = std::filesystem;

constexpr nn::ParameterOptions kNoMemory{.allocate = false};

int64_t parameter_count(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

fs::path own_machines() {
  std::error_code error;
  const auto program = fs::read_symlink("/proc/self/exe", error);
  for (const auto& file :
       {program.parent_path().parent_path() / "share/pardiff/machines.json", fs::path(PARDIFF_SOURCE_MACHINES)}) {
    if (fs::exists(file, error)) return file;
  }
  fail<CheckpointError>(
      "the table of machines, share/pardiff/machines.json beside the program, is missing. Install "
      "pardiff again, or give --kinds.");
}

}  // namespace

int64_t parameters_beside_transformer(const FluxConfigs& configs) {
  return parameter_count(*ClipTextModel(configs.text_encoder, kNoMemory)) +
         parameter_count(*T5EncoderModel(configs.text_encoder_2, kNoMemory)) +
         parameter_count(*AutoencoderKL(configs.vae, kNoMemory, AutoencoderParts::kDecoder));
}

std::vector<plan::Machine> known_machines(const fs::path& more) {
  auto machines = plan::machines_in(own_machines());
  if (more.empty()) return machines;
  for (auto& machine : plan::machines_in(more)) {
    std::erase_if(machines, [&](const auto& known) { return known.name == machine.name; });
    machines.push_back(std::move(machine));
  }
  return machines;
}

plan::Machine machine_named(const std::string& name, const fs::path& more) {
  std::vector<std::string> names;
  for (auto& machine : known_machines(more)) {
    if (machine.name == name) return machine;
    names.push_back(machine.name);
  }
  fail<UsageError>("--kind is '", name, "'. Use one of: ", joined(names),
                   ", or a kind of your own with --kinds FILE (docs/planner.md).");
}

}  // namespace pardiff::cli
