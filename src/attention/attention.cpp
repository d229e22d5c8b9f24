#include <ATen/ATen.h>
#include <pardiff/attention/attention.h>
#include <pardiff/attention/backend.h>
#include <pardiff/core/check.h>
#include <torch/csrc/autograd/custom_function.h>

#include "attention/modes/call.h"
#include "attention/modes/ring.h"
#include "attention/modes/ulysses.h"
#include "core/capsule.h"

namespace pardiff {
namespace {

using attention::Call;
using attention::TravelGroup;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using CallPointer = std::shared_ptr<const Call>;

// The kernels read rows of head_dim neighbouring numbers.
at::Tensor with_plain_rows(const at::Tensor& x) { return x.stride(-1) == 1 || x.size(-1) <= 1 ? x : x.contiguous(); }

// Query, key and value travel together, in one message a peer.
std::vector<TravelGroup> travel_groups(const Call& call, const at::Tensor& query, const at::Tensor& key,
                                       const at::Tensor& value) {
  const auto rows = call.ulysses_rows(call.query_spans);
  if (call.same_layout) {
    return {{{{query, &call.query_heads}, {key, &call.key_heads}, {value, &call.key_heads}}, rows}};
  }
  return {{{{query, &call.query_heads}}, rows},
          {{{key, &call.key_heads}, {value, &call.key_heads}}, call.ulysses_rows(call.key_spans)}};
}

struct Forward {
  at::Tensor query, key, value;  // after the exchange
  KernelOutput kernel;
  at::Tensor out;  // as the caller's query
};

std::vector<TravelGroup> travel_group(const Call& call, const at::Tensor& like_query) {
  return {{{{like_query, &call.query_heads}}, call.ulysses_rows(call.query_spans)}};
}

Forward run_forward(const Call& call, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const Meanwhile& meanwhile = {}) {
  const auto exchanged =
      attention::heads_to_tokens(travel_groups(call, query, key, value), call.ulysses, meanwhile.on_exchange);
  Forward done{exchanged[0], exchanged[1], exchanged[2], {}, {}};
  done.kernel = attention::ring_forward(call, done.query, done.key, done.value);
  done.out = attention::tokens_to_heads(travel_group(call, done.kernel.out), call.ulysses, meanwhile.on_return)[0];
  return done;
}

struct SharedAttention : torch::autograd::Function<SharedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const CallPointer& call) {
    const auto done = run_forward(*call, query, key, value);
    context->saved_data["call"] = enclose(call);
    context->save_for_backward({done.query, done.key, done.value, done.kernel.out, done.kernel.lse});
    return done.out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    check<ConfigError>(!at::GradMode::is_enabled(), "attention has no second derivative. Leave create_graph off.");
    const auto& call = *enclosed_as<CallPointer>(context->saved_data["call"]);
    const auto saved = context->get_saved_variables();
    const auto grad_out = with_plain_rows(gradients[0]);  // a sum's gradient is one number expanded
    const auto arrived = attention::heads_to_tokens(travel_group(call, grad_out), call.ulysses)[0];
    const auto parts = attention::ring_backward(call, arrived, saved[0], saved[1], saved[2], {saved[3], saved[4]});
    const auto home =
        attention::tokens_to_heads(travel_groups(call, parts.query, parts.key, parts.value), call.ulysses);
    return {home[0], home[1], home[2], at::Tensor()};
  }
};

}  // namespace

AttentionImpl::AttentionImpl() : backend_(&attention_backend("native")) {}

void AttentionImpl::set_backend(const std::string& name) { backend_ = &attention_backend(name); }

bool AttentionImpl::exchanges_heads() const { return sharing_ && sharing_->ulysses.size() > 1; }

std::string AttentionImpl::backend() const { return backend_->name(); }

at::Tensor AttentionImpl::forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                  const AttentionOptions& options) {
  const auto call =
      std::make_shared<const Call>(attention::plan_call(sharing_.get(), *backend_, query, key, value, options));
  const bool needs_gradient =
      at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  const auto plain_query = with_plain_rows(query), plain_key = with_plain_rows(key),
             plain_value = with_plain_rows(value);
  if (!needs_gradient) return run_forward(*call, plain_query, plain_key, plain_value, options.meanwhile).out;
  check<ConfigError>(!options.meanwhile.on_exchange && !options.meanwhile.on_return,
                     "attention has work for its exchanges (meanwhile) and is to be differentiated. Do the work "
                     "beforehand where gradients are recorded.");
  return SharedAttention::apply(plain_query, plain_key, plain_value, call);
}

}  // namespace pardiff
