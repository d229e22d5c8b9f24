#include "attention/modes/mask_view.h"

#include <ATen/ATen.h>

#include <limits>

namespace pardiff::attention {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

// One run of positions from 0 on: what a rank that holds everything sees.
bool is_natural(const std::vector<SequenceSpan>& spans) {
  int64_t next = 0;
  for (const auto& span : spans) {
    if (span.length > 0 && span.start != next) return false;
    next += span.length;
  }
  return true;
}

}  // namespace

MaskView::MaskView(const Call& call, at::ScalarType dtype, at::Device device)
    : call_(call), dtype_(dtype), device_(device), queries_(call.ring_spans(call.query_spans, call.ring.rank())) {}

bool MaskView::sees(int block) const {
  if (!call_.is_causal) return true;
  int64_t last_query = -1, first_key = std::numeric_limits<int64_t>::max();
  for (const auto& span : queries_) {
    if (span.length > 0) last_query = std::max(last_query, span.start + span.length - 1);
  }
  for (const auto& span : call_.ring_spans(call_.key_spans, block)) {
    if (span.length > 0) first_key = std::min(first_key, span.start);
  }
  return first_key <= last_query;
}

bool MaskView::is_plain_causal(int block) const {
  const auto keys = call_.ring_spans(call_.key_spans, block);
  return call_.is_causal && !call_.mask.defined() && is_natural(queries_) && is_natural(keys) &&
         total_length(queries_) == total_length(keys);
}

at::Tensor MaskView::positions(const std::vector<SequenceSpan>& spans) const {
  std::vector<at::Tensor> parts;
  const auto options = at::TensorOptions().dtype(at::kLong).device(device_);
  for (const auto& span : spans) parts.push_back(at::arange(span.start, span.start + span.length, options));
  return parts.empty() ? at::empty({0}, options) : at::cat(parts);
}

at::Tensor MaskView::additive(int block) const {
  if (!call_.mask.defined() && !call_.is_causal) return {};
  const auto rows = positions(queries_), columns = positions(call_.ring_spans(call_.key_spans, block));
  const auto options = at::TensorOptions().dtype(dtype_).device(device_);
  at::Tensor additive;
  if (call_.mask.defined()) {
    auto part = call_.mask;
    if (part.size(3) != 1) part = part.index_select(3, columns);
    if (part.size(2) != 1) part = part.index_select(2, rows);
    if (part.size(1) != 1) part = part.narrow(1, call_.own_query_heads().begin, call_.own_query_heads().count());
    if (part.size(3) == 1) part = part.expand({part.size(0), part.size(1), part.size(2), columns.size(0)});
    additive = part.scalar_type() == at::kBool ? at::zeros(part.sizes(), options).masked_fill(~part, kHidden)
                                               : part.to(options);
  }
  if (call_.is_causal) {
    const auto hidden = rows.unsqueeze(1) < columns.unsqueeze(0);  // [Sq, Skv]
    const auto base = additive.defined() ? additive : at::zeros({1, 1, 1, 1}, options);
    additive = base.masked_fill(hidden, kHidden);
  }
  return additive;
}

}  // namespace pardiff::attention
