#include "cli/bench_runs.h"

#include <ATen/ATen.h>
#include <pardiff/attention/attention.h>
#include <pardiff/core/check.h>
#include <pardiff/core/dtype_name.h>
#include <pardiff/plan/calibrate.h>
#include <pardiff/plan/planner.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/chart.h"
#include "cli/model_presets.h"

namespace pardiff::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

// A case: `prepare` and `restore` are not timed.
struct Case {
  BenchRow row;
  std::function<void()> work;
  std::function<void()> prepare = [] {};
  std::function<void()> restore = [] {};
};

Case case_of(const std::string& name, const std::string& size, std::function<void()> work) {
  Case one;
  one.row.name = name;
  one.row.size = size;
  one.work = std::move(work);
  return one;
}

int64_t bytes_sent(const World& world) {
  int64_t bytes = 0;
  for (const auto& [name, count] : world.counter().counts()) bytes += count.bytes_sent;
  return bytes;
}

double timed(const Case& one, World& world) {
  barrier(world.host_group());
  const auto start = Clock::now();
  one.work();
  if (world.device().is_cuda()) at::zeros({1}, world.device()).item();  // its kernels run on behind the host
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The slowest rank's time of each round.
std::vector<double> slowest(const std::vector<double>& own, World& world) {
  auto most = own;
  for (const auto& text : world.texts_of_all(Json(own).dump())) {
    const auto other = Json::parse(text).get<std::vector<double>>();
    for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], other[i]);
  }
  return most;
}

void run(std::vector<Case> cases, int64_t repeats, World& world, BenchResult& result) {
  for (int64_t round = 0; round < repeats; ++round) {
    for (auto& one : cases) {
      one.prepare();
      const auto before = bytes_sent(world);
      one.work();  // whatever happens only once
      one.row.bytes_sent = bytes_sent(world) - before;
      one.row.seconds.push_back(timed(one, world));
      one.restore();
    }
  }
  for (auto& one : cases) {
    one.row.seconds = slowest(one.row.seconds, world);
    result.rows.push_back(std::move(one.row));
  }
}

BenchResult result_of(const std::string& what, const BenchOptions& options, const World& world) {
  return {.what = what,
          .config = {{"ranks", std::to_string(world.size())},
                     {"device", world.device().str()},
                     {"transport", world.group().transport()},
                     {"threads", std::to_string(world.threads())},
                     {"dtype", dtype_name(options.dtype)}},
          .rows = {}};
}

// Values that are neither equal nor random.
at::Tensor wave(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto count = c10::multiply_integers(sizes);
  return at::arange(count, at::TensorOptions().dtype(at::kFloat))
      .sin()
      .view(sizes)
      .to(options.device(), options.dtype().toScalarType());
}

std::vector<ContextParallelConfig> context_layouts(int ranks) {
  if (ranks == 1) return {ContextParallelConfig{.ring_degree = 1}};
  std::vector<ContextParallelConfig> configs;
  for (int ring = 1; ring <= ranks; ++ring) {
    if (ranks % ring != 0) continue;
    ContextParallelConfig config{.ring_degree = ring, .ulysses_degree = ranks / ring};
    config.ring_anything = ring > 1;
    config.ulysses_anything =
        ring < ranks;  // any size and number of heads; where they divide it is the plain mode's code
    configs.push_back(config);
    if (ring == 1) continue;
    config.rotate_method = "allgather";
    configs.push_back(config);
  }
  return configs;
}

std::string name_of(const ContextParallelConfig& config) {
  if (config.ring() * config.ulysses() == 1) return "one rank";
  std::vector<std::string> parts;
  if (config.ring() > 1) parts.push_back(text_of("ring ", config.ring()));
  if (config.ulysses() > 1) parts.push_back(text_of("ulysses ", config.ulysses()));
  return joined(parts, " x ") + (config.rotate_method == "allgather" ? ", allgather" : "");
}

std::shared_ptr<AttentionSharing> sharing_of(const ContextParallelConfig& config, World& world) {
  const auto mesh = ParallelConfig{.context_parallel_config = config}.mesh(world.rank(), world.size());
  auto sharing = std::make_shared<AttentionSharing>();
  sharing->mode = &attention_mode(config);
  sharing->ring = world.group_of(mesh.ranks_along({"ring"}));
  sharing->ulysses = world.group_of(mesh.ranks_along({"ulysses"}));
  sharing->device = world.device().type();
  sharing->rotate = config.rotate_method == "alltoall";
  return sharing;
}

Case attention_case(const ContextParallelConfig& config, int64_t tokens, const BenchOptions& options, World& world) {
  Attention attention;
  if (world.size() > 1) attention->share(sharing_of(config, world));
  const auto layout = SequenceLayout::split(tokens, world.size());
  const auto x = wave({1, layout.local_length(world.rank()), options.heads, options.head_dim},
                      at::TensorOptions().dtype(options.dtype).device(world.device()));
  const AttentionOptions shared =
      world.size() > 1 ? AttentionOptions{.query_layout = layout, .key_layout = layout} : AttentionOptions();
  return case_of(name_of(config), text_of(tokens, " tokens"),
                 [attention, x, shared]() mutable { attention->forward(x, x, x, shared); });
}

std::vector<Case> collective_cases(int64_t bytes, const BenchOptions& options, World& world) {
  const auto& group = world.group();
  const int ranks = group.size(), next = (group.rank() + 1) % ranks, previous = (group.rank() + ranks - 1) % ranks;
  const int64_t each = std::max<int64_t>(bytes / static_cast<int64_t>(c10::elementSize(options.dtype)) / ranks, 1);
  const auto tensor_options = at::TensorOptions().dtype(options.dtype).device(world.device());
  const auto whole = at::zeros({ranks * each}, tensor_options), other = at::zeros({ranks * each}, tensor_options);
  const auto gathered = at::zeros({ranks * ranks * each}, tensor_options);
  const std::vector<int64_t> parts(static_cast<size_t>(ranks), each), wholes(static_cast<size_t>(ranks), ranks * each);
  const auto part = other.narrow(0, 0, each);
  const auto size = text_of(four_digits(static_cast<double>(whole.nbytes()) / 1e3), " kB");
  const std::vector<std::pair<std::string, std::function<void()>>> operations = {
      {"all_to_all", [=] { all_to_all(other, whole, parts, parts, group).wait(); }},
      {"all_gather", [=] { all_gather(gathered, whole, wholes, group).wait(); }},
      {"reduce_scatter", [=] { reduce_scatter(part, whole, parts, group).wait(); }},
      {"all_reduce", [=] { all_reduce(whole, group).wait(); }},
      {"broadcast", [=] { broadcast(whole, 0, group).wait(); }},
      {"send", [=] { hop(whole, next, other, previous, group).wait(); }}};
  std::vector<Case> cases;
  for (const auto& [name, work] : operations) cases.push_back(case_of(name, size, work));
  return cases;
}

plan::Work denoise_work(const BenchOptions& options, const FluxConfigs& configs, int64_t side) {
  plan::Work work{.transformer = configs.transformer,
                  .vae = configs.vae,
                  .height = side,
                  .width = side,
                  .text_tokens = options.text_tokens,
                  .dtype = options.dtype};
  check<UsageError>(work.image_tokens() > 0, "a picture of ", side, "x", side, " has no tokens. Give more pixels.");
  return work;
}

FluxTransformerInputs transformer_inputs(const plan::Work& work, const World& world) {
  const auto options = at::TensorOptions().dtype(work.dtype).device(world.device());
  const auto& config = work.transformer;
  const auto axes = static_cast<int64_t>(config.axes_dims_rope.size());
  FluxTransformerInputs inputs{
      .hidden_states = wave({1, work.image_tokens(), config.in_channels}, options),
      .encoder_hidden_states = wave({1, work.text_tokens, config.joint_attention_dim}, options),
      .pooled_projections = wave({1, config.pooled_projection_dim}, options),
      .timestep = at::full({1}, 0.5, options),
      .img_ids = at::zeros({work.image_tokens(), axes}, options),
      .txt_ids = at::zeros({work.text_tokens, axes}, options)};
  if (config.guidance_embeds) inputs.guidance = at::full({1}, 3.5, options.dtype(at::kFloat));
  return inputs;
}

// What a transformer alone can do: its pictures and passes are the pipeline's.
bool is_of_the_transformer(const plan::Layout& layout) {
  return layout.is_possible() && layout.config.weight_axes().empty() &&
         layout.config.dp_degree * layout.config.fsdp_degree * layout.config.cfg_degree == 1;
}

}  // namespace

BenchResult bench_attention(const BenchOptions& options, World& world) {
  const at::NoGradGuard no_grad;
  auto result = result_of("attention", options, world);
  result.config.emplace_back("heads", text_of(options.heads, " of ", options.head_dim));
  for (const auto tokens : options.sizes) {
    std::vector<Case> cases;
    for (const auto& config : context_layouts(world.size())) {
      cases.push_back(attention_case(config, tokens, options, world));
    }
    run(std::move(cases), options.repeats, world, result);
  }
  return result;
}

BenchResult bench_collectives(const BenchOptions& options, World& world) {
  check<UsageError>(world.size() > 1, "there is one rank, and nobody to send to. Give --nproc-per-node.");
  auto result = result_of("collectives", options, world);
  for (const auto bytes : options.sizes) run(collective_cases(bytes, options, world), options.repeats, world, result);
  return result;
}

BenchResult bench_denoise(const BenchOptions& options, World& world) {
  const at::NoGradGuard no_grad;
  const auto configs = flux_configs(options.model);
  auto result = result_of("denoise", options, world);
  result.config.emplace_back("model", options.model);
  FluxTransformer2DModel model(configs.transformer, nn::ParameterOptions{.dtype = options.dtype});
  model->to(world.device());
  for (const auto side : options.sizes) {
    const auto work = denoise_work(options, configs, side);
    const auto inputs = transformer_inputs(work, world);
    std::vector<Case> cases;
    for (const auto& layout : plan::plan(work, plan::measured(work, world), world.size())) {
      if (!is_of_the_transformer(layout)) continue;
      auto one = case_of(plan::description(layout.config), text_of(side, " pixels"),
                         [&model, inputs] { model->forward(inputs); });
      one.row.predicted_s = layout.step.total();
      one.prepare = [&model, &world, layout] {
        if (world.size() > 1) model->enable_parallelism(layout.config, world);
      };
      one.restore = [&model] { model->disable_parallelism(); };
      cases.push_back(std::move(one));
    }
    // Hosts may rank layouts that are equally fast differently; all run them in one order.
    std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.row.name < b.row.name; });
    run(std::move(cases), options.repeats, world, result);
  }
  return result;
}

}  // namespace pardiff::cli
