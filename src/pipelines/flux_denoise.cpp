#include "pipelines/flux_denoise.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/models/apply.h>

#include <chrono>
#include <memory>

namespace pardiff::flux {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The tokens of this rank, and the way back; everything is whole where the transformer is not context parallel.
class TokenShares {
 public:
  TokenShares(FluxTransformer2DModel transformer, int64_t image_tokens, int64_t text_tokens)
      : share_(context_share(*transformer)) {
    if (!share_) return;
    image_ = SequenceLayout::split(image_tokens, share_->group.size());
    text_ = SequenceLayout::split(text_tokens, share_->group.size());
    keep_ = std::make_unique<KeepSplit>(
        *transformer,
        std::map<std::string, SequenceLayout>{
            {"hidden_states", image_}, {"img_ids", image_}, {"encoder_hidden_states", text_}, {"txt_ids", text_}});
  }

  at::Tensor image(const at::Tensor& whole, int64_t dim) const { return cut(whole, dim, image_); }
  at::Tensor text(const at::Tensor& whole, int64_t dim) const { return cut(whole, dim, text_); }

  // [B, own image tokens, C] -> [B, image tokens, C]
  at::Tensor gathered(const at::Tensor& own) const {
    if (!share_) return own;
    const auto front = own.transpose(0, 1).contiguous();  // [own tokens, B, C]
    std::vector<int64_t> counts;
    for (int rank = 0; rank < share_->group.size(); ++rank) {
      counts.push_back(image_.local_length(rank) * own.size(0) * own.size(2));
    }
    const auto whole = at::empty({image_.length(), own.size(0), own.size(2)}, own.options());
    all_gather(whole, front, counts, share_->group).wait();
    return whole.transpose(0, 1).contiguous();
  }

 private:
  at::Tensor cut(const at::Tensor& whole, int64_t dim, const SequenceLayout& layout) const {
    if (!share_ || !whole.defined()) return whole;
    const auto span = layout.spans(share_->group.rank()).front();
    return whole.narrow(dim, span.start, span.length).contiguous();
  }

  std::shared_ptr<const nn::ContextShare> share_;
  SequenceLayout image_, text_;
  std::unique_ptr<KeepSplit> keep_;
};

at::Tensor velocity(const Denoising& work, FluxTransformerInputs inputs, const Condition& negative) {
  auto transformer = work.transformer;
  const auto positive = transformer->forward(inputs);
  if (!negative.prompt_embeds.defined()) return positive;
  inputs.encoder_hidden_states = negative.prompt_embeds;
  inputs.pooled_projections = negative.pooled;
  const auto opposite = transformer->forward(inputs);
  return opposite + work.true_cfg_scale * (positive - opposite);
}

std::map<std::string, at::Tensor> whole_inputs(const Denoising& work, const FluxTransformerInputs& inputs) {
  std::map<std::string, at::Tensor> all = {{"hidden_states", work.latents},
                                           {"encoder_hidden_states", work.condition.prompt_embeds},
                                           {"pooled_projections", work.condition.pooled},
                                           {"timestep", inputs.timestep},
                                           {"img_ids", work.img_ids},
                                           {"txt_ids", work.txt_ids}};
  if (inputs.guidance.defined()) all["guidance"] = inputs.guidance;
  for (auto& [name, tensor] : all) tensor = tensor.cpu();
  return all;
}

}  // namespace

void check_lengths(torch::nn::Module& transformer, int64_t image_tokens, int64_t text_tokens) {
  const auto share = context_share(transformer);
  if (!share || share->length_any) return;
  const int ranks = share->group.size();
  const std::string flag = share->lifting_flag == "ring_anything" ? "--ring-anything" : "--ulysses-anything";
  const auto check_one = [&](const char* what, int64_t tokens) {
    check<ConfigError>(tokens % ranks == 0, what, ": ", tokens, " tokens cannot be cut equally among ", ranks,
                       " context ranks (ring_degree x ulysses_degree). Use ", flag, " (", share->lifting_flag,
                       "), or another size.");
  };
  check_one("hidden_states (the picture)", image_tokens);
  check_one("encoder_hidden_states (the prompt)", text_tokens);
}

at::Tensor denoise(const Denoising& work, World& world, FluxPipelineOutput& output) {
  const TokenShares shares(work.transformer, work.latents.size(1), work.condition.prompt_embeds.size(1));
  const int64_t batch = work.latents.size(0);
  const auto dtype = work.latents.scalar_type();
  FluxTransformerInputs inputs;
  inputs.encoder_hidden_states = shares.text(work.condition.prompt_embeds, 1);
  inputs.pooled_projections = work.condition.pooled;
  inputs.img_ids = shares.image(work.img_ids, 0);
  inputs.txt_ids = shares.text(work.txt_ids, 0);
  const Condition negative{shares.text(work.negative.prompt_embeds, 1), work.negative.pooled};
  if (work.transformer->config().guidance_embeds) {
    inputs.guidance = at::full({1}, work.guidance_scale, work.latents.options().dtype(at::kFloat)).expand({batch});
  }

  auto latents = shares.image(work.latents, 1);
  const auto before = world.counter().counts();
  std::map<std::string, OperationCount> gathers;  // for --dump-tensors; no part of the loop's own traffic
  const int64_t steps = work.scheduler->timesteps().size(0);
  for (int64_t step = 0; step < steps; ++step) {
    const auto start = Clock::now();
    const auto timestep = work.scheduler->timesteps()[step].to(latents.device());
    inputs.hidden_states = latents;
    inputs.timestep = timestep.expand({batch}).to(dtype) / 1000;
    if (step == 0 && work.keep_transformer_inputs) output.transformer_inputs = whole_inputs(work, inputs);
    latents = work.scheduler->step(velocity(work, inputs, negative), step, latents);
    StepEnd end{step, steps, timestep.item<double>(), latents, inputs.encoder_hidden_states};
    output.step_seconds.push_back(seconds_since(start));
    if (work.callback_on_step_end) {
      work.callback_on_step_end(end);
      check<ShapeError>(end.latents.sizes() == latents.sizes(), "callback_on_step_end replaced latents of shape ",
                        latents.sizes(), " by ", end.latents.sizes(), ". Keep the shape.");
      latents = end.latents;
      inputs.encoder_hidden_states = end.prompt_embeds;
    }
    if (work.keep_latents) {
      const auto sent = world.counter().counts();
      output.latents.push_back(shares.gathered(latents).cpu());
      for (const auto& [name, apart] : difference(world.counter().counts(), sent)) {
        gathers[name].calls += apart.calls;
        gathers[name].bytes_sent += apart.bytes_sent;
      }
    }
    if (end.interrupt) break;
  }
  output.communication = difference(difference(world.counter().counts(), before), gathers);
  return shares.gathered(latents);
}

}  // namespace pardiff::flux
