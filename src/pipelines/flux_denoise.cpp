#include "pipelines/flux_denoise.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>
#include <pardiff/core/trace.h>
#include <pardiff/models/apply.h>

#include <memory>
#include <utility>

#include "nn/token_shares.h"
#include "pipelines/stopwatch.h"

namespace pardiff::flux {
namespace {

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
    return nn::gather_shares(own, 1, image_, share_->group).contiguous();
  }

 private:
  at::Tensor cut(const at::Tensor& whole, int64_t dim, const SequenceLayout& layout) const {
    if (!share_ || !whole.defined()) return whole;
    return nn::own_share(whole, dim, layout, share_->group).contiguous();
  }

  std::shared_ptr<const nn::ContextShare> share_;
  SequenceLayout image_, text_;
  std::unique_ptr<KeepSplit> keep_;
};

void check_replacement(const char* name, const at::Tensor& replaced, const at::Tensor& by) {
  check<ShapeError>(by.defined() && by.sizes() == replaced.sizes() && by.scalar_type() == replaced.scalar_type(),
                    "callback_on_step_end replaced ", name, " (", replaced.sizes(), " ", replaced.scalar_type(),
                    ") by a tensor ", by.defined() ? text_of(by.sizes(), " ", by.scalar_type()) : "without data",
                    ". Keep its shape and dtype.");
}

// The scheduler's, as the transformer takes it. Shapes: any.
at::Tensor model_timestep(const at::Tensor& timestep, const at::Tensor& latents) {
  return timestep.to(latents.device()).to(latents.scalar_type()) / 1000;
}

// Undefined if the transformer takes none.
at::Tensor guidance_of(const Denoising& work, int64_t rows) {
  if (!work.transformer->config().guidance_embeds) return {};
  return at::full({1}, work.guidance_scale, work.latents.options().dtype(at::kFloat)).expand({rows});
}

class Loop {
 public:
  Loop(const Denoising& work, World& world, FluxPipelineOutput& output)
      : work_(work),
        world_(world),
        output_(output),
        shares_(work.transformer, work.latents.size(1), work.condition.prompt_embeds.size(1)),
        negative_{shares_.text(work.negative.prompt_embeds, 1), work.negative.pooled} {
    inputs_.hidden_states = shares_.image(work.batch->own(work.latents), 1);
    inputs_.encoder_hidden_states = shares_.text(work.condition.prompt_embeds, 1);
    inputs_.pooled_projections = work.condition.pooled;
    inputs_.img_ids = shares_.image(work.img_ids, 0);
    inputs_.txt_ids = shares_.text(work.txt_ids, 0);
    inputs_.rotary = work.transformer->rotary_table(inputs_.txt_ids, inputs_.img_ids);
    inputs_.guidance = guidance_of(work, inputs_.hidden_states.size(0));
  }

  at::Tensor run() {
    const TracedSpan span("stage", "denoise");
    const auto before = world_.counter().counts();
    const int64_t steps = work_.scheduler->timesteps().size(0);
    for (int64_t step = 0; step < steps; ++step) {
      const TracedSpan step_span("step", "step", step);
      const Stopwatch watch;
      const auto timestep = work_.scheduler->timesteps()[step];
      advance(step, timestep);
      output_.step_seconds.push_back(watch.seconds());
      const bool interrupted =
          call_back({.step = step, .num_inference_steps = steps, .timestep = timestep.item<double>()});
      if (work_.keep_latents) uncounted([&] { keep_latents(); });
      if (interrupted) break;
    }
    output_.communication = difference(difference(world_.counter().counts(), before), gathers_);
    return shares_.gathered(inputs_.hidden_states);
  }

 private:
  void advance(int64_t step, const at::Tensor& timestep) {
    const auto& latents = inputs_.hidden_states;
    inputs_.timestep = model_timestep(timestep, latents).expand({latents.size(0)});
    inputs_.modulations = modulations(step, 0);
    if (step == 0 && work_.keep_transformer_inputs) uncounted([&] { keep_inputs(); });
    inputs_.hidden_states = work_.scheduler->step(velocity(step), step, latents);
    // Kernels of a GPU run on behind the program's back; a step is over when they are.
    if (latents.is_cuda()) inputs_.hidden_states.flatten()[0].item();
  }

  FluxModulations modulations(int64_t step, int64_t pass) const {
    const int64_t rows = inputs_.hidden_states.size(0), passes = negative_.given() ? 2 : 1;
    return work_.modulations.rows((step * passes + pass) * rows, rows);
  }

  at::Tensor velocity(int64_t step) {
    auto transformer = work_.transformer;
    const auto own = transformer->forward(inputs_);
    if (work_.batch->pass() != BatchShare::Pass::kBoth) {
      const auto both = work_.batch->both_passes(own);
      return guided(both[0], both[1]);
    }
    if (!negative_.given()) return own;
    auto opposite_inputs = inputs_;
    opposite_inputs.encoder_hidden_states = negative_.prompt_embeds;
    opposite_inputs.pooled_projections = negative_.pooled;
    opposite_inputs.modulations = modulations(step, 1);
    return guided(own, transformer->forward(opposite_inputs));
  }

  at::Tensor guided(const at::Tensor& positive, const at::Tensor& opposite) const {
    return opposite + work_.true_cfg_scale * (positive - opposite);
  }

  bool call_back(StepEnd end) {
    if (!work_.callback_on_step_end) return false;
    end.latents = inputs_.hidden_states;
    end.prompt_embeds = inputs_.encoder_hidden_states;
    end.gathered = [this](const at::Tensor& share) {
      at::Tensor whole;
      uncounted([&] { whole = work_.batch->gathered(shares_.gathered(share)); });
      return whole;
    };
    work_.callback_on_step_end(end);
    check_replacement("latents", inputs_.hidden_states, end.latents);
    check_replacement("prompt_embeds", inputs_.encoder_hidden_states, end.prompt_embeds);
    inputs_.hidden_states = end.latents;
    inputs_.encoder_hidden_states = end.prompt_embeds;
    return end.interrupt;
  }

  // What an observer has gathered is no part of the loop's own traffic.
  template <typename Observe>
  void uncounted(const Observe& observe) {
    const auto before = world_.counter().counts();
    observe();
    for (const auto& [name, sent] : difference(world_.counter().counts(), before)) {
      gathers_[name].calls += sent.calls;
      gathers_[name].bytes_sent += sent.bytes_sent;
    }
  }

  void keep_latents() {
    output_.latents.push_back(work_.batch->gathered(shares_.gathered(inputs_.hidden_states)).cpu());
  }

  void keep_inputs() {
    const int64_t pictures = work_.latents.size(0);
    output_.transformer_inputs = {{"hidden_states", work_.latents},
                                  {"encoder_hidden_states", work_.batch->gathered(work_.condition.prompt_embeds)},
                                  {"pooled_projections", work_.batch->gathered(work_.condition.pooled)},
                                  {"timestep", inputs_.timestep.narrow(0, 0, 1).expand({pictures})},
                                  {"img_ids", work_.img_ids},
                                  {"txt_ids", work_.txt_ids}};
    if (inputs_.guidance.defined()) {
      output_.transformer_inputs["guidance"] = inputs_.guidance.narrow(0, 0, 1).expand({pictures});
    }
    for (auto& [name, tensor] : output_.transformer_inputs) tensor = tensor.cpu();
  }

  const Denoising& work_;
  World& world_;
  FluxPipelineOutput& output_;
  TokenShares shares_;
  FluxTransformerInputs inputs_;  // this rank's shares; hidden_states are the latents as they are now
  Condition negative_;
  std::map<std::string, OperationCount> gathers_;
};

}  // namespace

void check_token_counts(const TokenRule& rule, int64_t image_tokens, int64_t text_tokens) {
  if (rule.any_length) return;
  const std::string flag = rule.lifting_flag == "ring_anything" ? "--ring-anything" : "--ulysses-anything";
  const std::string_view degrees = rule.fsdp_folded
                                       ? "ring_degree x ulysses_degree x fsdp_degree, whose groups share one picture"
                                       : "ring_degree x ulysses_degree";
  const auto check_one = [&](const char* what, int64_t tokens, const char* other) {
    check<ConfigError>(tokens % rule.ranks == 0, what, ": ", tokens, " tokens cannot be cut equally among ", rule.ranks,
                       " context ranks (", degrees, "). Use ", flag, " (", rule.lifting_flag, "), or another ", other,
                       ".");
  };
  check_one("hidden_states (the picture)", image_tokens, "height and width");
  check_one("encoder_hidden_states (the prompt)", text_tokens, "max_sequence_length");
}

void check_shares(FluxTransformer2DModelImpl& transformer, int64_t image_tokens, int64_t text_tokens) {
  const auto share = context_share(transformer);
  if (share)
    check_token_counts(
        {share->length_any, share->lifting_flag, share->group.size(), transformer.is_fsdp_folded_into_ring()},
        image_tokens, text_tokens);
}

FluxTransformerInputs conditions_of_steps(const Denoising& work) {
  const auto& pooled = work.condition.pooled;
  const auto rows = work.negative.given() ? at::cat({pooled, work.negative.pooled}) : pooled;
  const auto timesteps = work.scheduler->timesteps();
  const int64_t steps = timesteps.size(0);
  return {.pooled_projections = rows.repeat({steps, 1}),
          .timestep = model_timestep(timesteps, work.latents).repeat_interleave(rows.size(0)),
          .guidance = guidance_of(work, steps * rows.size(0))};
}

at::Tensor denoise(const Denoising& work, World& world, FluxPipelineOutput& output) {
  return Loop(work, world, output).run();
}

}  // namespace pardiff::flux
