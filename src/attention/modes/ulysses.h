#pragma once
#include <functional>

#include "attention/modes/call.h"

namespace pardiff::attention {

/// A tensor that travels, with the heads of each Ulysses rank.
struct Traveller {
  at::Tensor tensor;
  const std::vector<HeadRange>* heads;
};

/// Tensors whose tokens are shared alike; they are packed row by row.
struct TravelGroup {
  std::vector<Traveller> travellers;
  std::vector<int64_t> rows;  // [ulysses rank] -> tokens it holds before the exchange
};

/// Gives away heads for tokens: every rank ends with all tokens of its Ulysses group and its own heads.
/// Collective: one all-to-all over `ulysses`, whatever the number of tensors; a group of one returns the tensors.
/// Shapes: each [B, rows[rank], H, D] -> [B, sum(rows), heads of this rank, D], a view whose innermost dimension is
/// contiguous.
/// `meanwhile` runs once, as they travel.
std::vector<at::Tensor> heads_to_tokens(const std::vector<TravelGroup>& groups, const ProcessGroup& ulysses,
                                        const std::function<void()>& meanwhile = {});
/// The way back: [B, sum(rows), heads of this rank, D] -> [B, rows[rank], H, D]. A head that several ranks hold is
/// added up in rank order.
std::vector<at::Tensor> tokens_to_heads(const std::vector<TravelGroup>& groups, const ProcessGroup& ulysses,
                                        const std::function<void()>& meanwhile = {});

}  // namespace pardiff::attention
