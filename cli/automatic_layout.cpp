#include "cli/automatic_layout.h"

#include <pardiff/core/check.h>
#include <pardiff/core/log.h>
#include <pardiff/io/model_folder.h>
#include <pardiff/plan/calibrate.h>
#include <pardiff/plan/planner.h>

#include <algorithm>

#include "cli/chart.h"
#include "cli/dtype.h"
#include "cli/plan_work.h"
#include "cli/progress.h"

namespace pardiff::cli {
namespace {

constexpr int64_t kUsualSide = 1024;

plan::Work work_of(const GenerateFlags& flags, at::ScalarType dtype) {
  const auto configs = flux_configs(resolve_model(flags.model).string());
  return {.transformer = configs.transformer,
          .vae = configs.vae,
          .other_parameters = parameters_beside_transformer(configs),
          .height = flags.height.value_or(kUsualSide),
          .width = flags.width.value_or(kUsualSide),
          .text_tokens = flags.max_sequence_length,
          .pictures = static_cast<int64_t>(flags.prompts.size()) * flags.num_images,
          .true_guidance = flags.true_cfg_scale > 1 && !flags.negative_prompts.empty(),
          .steps = flags.steps,
          .dtype = dtype};
}

plan::Machine machine_of(const GenerateFlags& flags, const plan::Work& work, World& world) {
  if (flags.ranks.machine.empty()) return plan::measured(work, world);
  const auto machines = plan::machines_in(flags.ranks.machine);
  check<UsageError>(machines.size() == 1, "--machine is '", flags.ranks.machine.string(), "', which holds ",
                    machines.size(), " kinds. Give a file with one, as pardiff plan --calibrate writes it.");
  return machines.front();
}

std::string milliseconds(const plan::Layout& layout) { return four_digits(1000 * layout.step.total()) + " ms a step"; }

void say_choice(const std::vector<plan::Layout>& layouts) {
  auto text = text_of("layout: ", plan::description(layouts[0].config), ", predicted ", milliseconds(layouts[0]));
  if (layouts.size() > 1 && layouts[1].is_possible()) {
    text += text_of("; next: ", plan::description(layouts[1].config), ", ", milliseconds(layouts[1]));
  }
  say(text);
}

}  // namespace

void choose_automatic_layout(GenerateFlags& flags, RankLayout& layout, World& world) {
  const auto work = work_of(flags, choose_dtype(flags.dtype, world).value_or(at::kBFloat16));
  const auto layouts = plan::plan(work, machine_of(flags, work, world), world.size());
  check<ConfigError>(layouts.front().is_possible(), "no layout of ", world.size(),
                     " ranks can run this. The nearest: ", plan::description(layouts.front().config), ": ",
                     layouts.front().refusal);
  // Hosts may round differently: rank 0's choice counts.
  const auto chosen = world.text_from_rank_0(plan::description(layouts.front().config));
  const auto found = std::find_if(layouts.begin(), layouts.end(), [&](const plan::Layout& candidate) {
    return plan::description(candidate.config) == chosen;
  });
  check<CommError>(found != layouts.end(), "rank 0 has chosen the layout '", chosen,
                   "', which this rank does not know. Run one version of pardiff everywhere.");
  if (world.rank() == 0) say_choice(layouts);
  auto config = found->config;
  if (config.context_parallel_config) {
    config.context_parallel_config->convert_to_fp32 = !flags.ranks.no_convert_to_fp32;
    config.context_parallel_config->rotate_method = flags.ranks.rotate_method;
  }
  flags.ranks.take(config);
  if (world.size() > 1) layout.parallel = config;
}

}  // namespace pardiff::cli
