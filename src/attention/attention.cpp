#include <ATen/ATen.h>
#include <pardiff/attention/attention.h>
#include <pardiff/attention/backend.h>
#include <pardiff/core/check.h>
#include <torch/csrc/autograd/custom_function.h>

#include "attention/modes/call.h"
#include "attention/modes/ring.h"
#include "attention/modes/ulysses.h"

namespace pardiff {
namespace {

using attention::Call;
using attention::TravelGroup;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using CallPointer = std::shared_ptr<const Call>;

struct CallCapsule : torch::CustomClassHolder {
  explicit CallCapsule(CallPointer held) : call(std::move(held)) {}
  CallPointer call;
};

// The kernels read rows of head_dim neighbouring numbers.
at::Tensor with_plain_rows(const at::Tensor& x) { return x.stride(-1) == 1 || x.size(-1) <= 1 ? x : x.contiguous(); }

int64_t head_count(const std::vector<attention::HeadRange>& heads) {
  int64_t end = 0;
  for (const auto& range : heads) end = std::max(end, range.end);
  return end;
}

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

Forward run_forward(const Call& call, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  Forward done;
  if (call.ulysses.size() == 1) {
    done.query = query, done.key = key, done.value = value;
  } else {
    const auto exchanged = attention::heads_to_tokens(travel_groups(call, query, key, value), call.ulysses);
    done.query = exchanged[0], done.key = exchanged[1], done.value = exchanged[2];
  }
  done.kernel = attention::ring_forward(call, done.query, done.key, done.value);
  done.out = done.kernel.out;
  if (call.ulysses.size() > 1) {
    done.out = attention::tokens_to_heads({{{{done.out, &call.query_heads}}, call.ulysses_rows(call.query_spans)}},
                                          {query.size(2)}, call.ulysses)[0];
  }
  return done;
}

struct SharedAttention : torch::autograd::Function<SharedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const CallPointer& call) {
    const auto done = run_forward(*call, query, key, value);
    context->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<CallCapsule>(call));
    context->save_for_backward({done.query, done.key, done.value, done.kernel.out, done.kernel.lse});
    return done.out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    check<ConfigError>(!at::GradMode::is_enabled(), "attention has no second derivative. Leave create_graph off.");
    const auto& call = *static_cast<const CallCapsule&>(*context->saved_data["call"].toCapsule()).call;
    const auto saved = context->get_saved_variables();
    const auto rows = call.ulysses_rows(call.query_spans);
    auto grad_out = with_plain_rows(gradients[0]);  // a sum's gradient is one number expanded
    if (call.ulysses.size() > 1) {
      grad_out = attention::heads_to_tokens({{{{grad_out, &call.query_heads}}, rows}}, call.ulysses)[0];
    }
    auto parts = attention::ring_backward(call, grad_out, saved[0], saved[1], saved[2], {saved[3], saved[4]});
    if (call.ulysses.size() > 1) {
      const auto home = attention::tokens_to_heads(
          travel_groups(call, parts.query, parts.key, parts.value),
          {head_count(call.query_heads), head_count(call.key_heads), head_count(call.key_heads)}, call.ulysses);
      parts = {home[0], home[1], home[2]};
    }
    return {parts.query, parts.key, parts.value, at::Tensor()};
  }
};

}  // namespace

AttentionImpl::AttentionImpl() = default;

void AttentionImpl::set_backend(const std::string& name) { backend_ = attention_backend(name).name(); }

at::Tensor AttentionImpl::forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                  const AttentionOptions& options) {
  const auto call = std::make_shared<const Call>(
      attention::plan_call(sharing_.get(), attention_backend(backend_), query, key, value, options));
  const bool needs_gradient =
      at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  const auto plain_query = with_plain_rows(query), plain_key = with_plain_rows(key),
             plain_value = with_plain_rows(value);
  if (!needs_gradient) return run_forward(*call, plain_query, plain_key, plain_value).out;
  return SharedAttention::apply(plain_query, plain_key, plain_value, call);
}

}  // namespace pardiff
