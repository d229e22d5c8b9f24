#include "attention/modes/ulysses.h"

#include <ATen/ATen.h>

#include <numeric>

namespace pardiff::attention {
namespace {

using Groups = std::vector<TravelGroup>;
using Tensors = std::vector<at::Tensor>;

// A message between two ranks holds, group after group, rows of [B, heads of all travellers of the group, D].
int64_t row_heads(const TravelGroup& group, int rank) {
  int64_t sum = 0;
  for (const auto& traveller : group.travellers) sum += (*traveller.heads)[rank].count();
  return sum;
}

int64_t head_count(const Traveller& traveller) {
  int64_t end = 0;
  for (const auto& range : *traveller.heads) end = std::max(end, range.end);
  return end;
}

int64_t sum_of(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

Tensors tensors_of(const Groups& groups) {
  Tensors tensors;
  for (const auto& group : groups) {
    for (const auto& traveller : group.travellers) tensors.push_back(traveller.tensor);
  }
  return tensors;
}

struct Sizes {
  int64_t batch, head_dim;
  at::TensorOptions options;

  explicit Sizes(const Groups& groups)
      : batch(groups[0].travellers[0].tensor.size(0)),
        head_dim(groups[0].travellers[0].tensor.size(3)),
        options(groups[0].travellers[0].tensor.options()) {}

  int64_t elements(int64_t rows, int64_t heads) const { return rows * batch * heads * head_dim; }
};

// Elements of the message that holds `rows_of`'s tokens with `heads_of`'s heads.
int64_t message_elements(const Groups& groups, const Sizes& sizes, int rows_of, int heads_of) {
  int64_t sum = 0;
  for (const auto& group : groups) sum += sizes.elements(group.rows[rows_of], row_heads(group, heads_of));
  return sum;
}

// The part of a flat buffer that holds one group's rows, as [rows, B, heads, D].
at::Tensor rows_view(const at::Tensor& flat, int64_t& offset, int64_t rows, int64_t heads, const Sizes& sizes) {
  const int64_t count = sizes.elements(rows, heads);
  const auto view = flat.narrow(0, offset, count).view({rows, sizes.batch, heads, sizes.head_dim});
  offset += count;
  return view;
}

// For every peer its heads of this rank's tokens.
at::Tensor pack_heads(const Groups& groups, const Sizes& sizes, int64_t elements, int rank, int ranks) {
  const auto flat = at::empty({elements}, sizes.options);
  int64_t offset = 0;
  for (int peer = 0; peer < ranks; ++peer) {
    for (const auto& group : groups) {
      const auto rows = rows_view(flat, offset, group.rows[rank], row_heads(group, peer), sizes);
      int64_t head = 0;
      for (const auto& [tensor, heads] : group.travellers) {
        const auto& range = (*heads)[peer];
        rows.narrow(2, head, range.count()).copy_(tensor.narrow(2, range.begin, range.count()).transpose(0, 1));
        head += range.count();
      }
    }
  }
  return flat;
}

// Per group all peers' tokens with this rank's heads: [sum(rows), B, heads, D].
Tensors joined_rows(const at::Tensor& flat, const Groups& groups, const Sizes& sizes, int rank, int ranks) {
  int64_t offset = 0;
  if (groups.size() == 1) {  // the rows of all peers lie one after the other
    return {rows_view(flat, offset, sum_of(groups[0].rows), row_heads(groups[0], rank), sizes)};
  }
  std::vector<Tensors> by_group(groups.size());
  for (int peer = 0; peer < ranks; ++peer) {
    for (size_t g = 0; g < groups.size(); ++g) {
      by_group[g].push_back(rows_view(flat, offset, groups[g].rows[peer], row_heads(groups[g], rank), sizes));
    }
  }
  Tensors joined;
  for (const auto& parts : by_group) joined.push_back(at::cat(parts));
  return joined;
}

// For every peer its tokens with this rank's heads.
at::Tensor pack_tokens(const Groups& groups, const Sizes& sizes, int64_t elements, int rank, int ranks) {
  if (groups.size() == 1 && groups[0].travellers.size() == 1) {
    return groups[0].travellers[0].tensor.transpose(0, 1).contiguous().view({-1});  // no copy for batch 1
  }
  const auto flat = at::empty({elements}, sizes.options);
  int64_t offset = 0;
  std::vector<int64_t> first_row(groups.size(), 0);
  for (int peer = 0; peer < ranks; ++peer) {
    for (size_t g = 0; g < groups.size(); ++g) {
      const int64_t count = groups[g].rows[peer];
      const auto rows = rows_view(flat, offset, count, row_heads(groups[g], rank), sizes);
      int64_t head = 0;
      for (const auto& [tensor, ranges] : groups[g].travellers) {
        const int64_t heads = (*ranges)[rank].count();
        rows.narrow(2, head, heads).copy_(tensor.narrow(1, first_row[g], count).transpose(0, 1));
        head += heads;
      }
      first_row[g] += count;
    }
  }
  return flat;
}

// Puts the heads that came from `peer` where they belong. Grouped key heads may be with several ranks, always with
// neighbours: a head seen before is added to.
void place_heads(const at::Tensor& result, const at::Tensor& arrived, const std::vector<HeadRange>& heads, int peer) {
  const auto& range = heads[peer];
  const int64_t seen = peer == 0 ? 0 : std::max<int64_t>(0, heads[peer - 1].end - range.begin);
  const int64_t repeated = range.count() == 0 ? 0 : std::min(seen, range.count());
  const int64_t fresh = range.count() - repeated;
  const auto target = result.narrow(2, range.begin, range.count());
  if (repeated > 0) target.narrow(2, 0, repeated).add_(arrived.narrow(2, 0, repeated));
  target.narrow(2, repeated, fresh).copy_(arrived.narrow(2, repeated, fresh));
}

Tensors unpack_heads(const at::Tensor& flat, const Groups& groups, const Sizes& sizes, int rank, int ranks) {
  Tensors results;
  for (const auto& group : groups) {
    for (const auto& traveller : group.travellers) {
      results.push_back(
          at::empty({sizes.batch, group.rows[rank], head_count(traveller), sizes.head_dim}, sizes.options));
    }
  }
  int64_t offset = 0;
  for (int peer = 0; peer < ranks; ++peer) {
    size_t index = 0;
    for (const auto& group : groups) {
      const auto rows = rows_view(flat, offset, group.rows[rank], row_heads(group, peer), sizes);
      int64_t head = 0;
      for (const auto& traveller : group.travellers) {
        const int64_t count = (*traveller.heads)[peer].count();
        place_heads(results[index++], rows.narrow(2, head, count).transpose(0, 1), *traveller.heads, peer);
        head += count;
      }
    }
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> heads_to_tokens(const std::vector<TravelGroup>& groups, const ProcessGroup& ulysses,
                                        const std::function<void()>& meanwhile) {
  const int ranks = ulysses.size(), rank = ulysses.rank();
  if (ranks == 1) {
    if (meanwhile) meanwhile();
    return tensors_of(groups);
  }
  const Sizes sizes(groups);
  std::vector<int64_t> sent, received;
  for (int peer = 0; peer < ranks; ++peer) {
    sent.push_back(message_elements(groups, sizes, rank, peer));
    received.push_back(message_elements(groups, sizes, peer, rank));
  }
  const auto input = pack_heads(groups, sizes, sum_of(sent), rank, ranks);
  const auto output = at::empty({sum_of(received)}, sizes.options);
  auto travelling = all_to_all(output, input, received, sent, ulysses);
  if (meanwhile) meanwhile();
  travelling.wait();

  Tensors results;
  const auto rows = joined_rows(output, groups, sizes, rank, ranks);
  for (size_t g = 0; g < groups.size(); ++g) {
    int64_t head = 0;
    for (const auto& traveller : groups[g].travellers) {
      const int64_t count = (*traveller.heads)[rank].count();
      results.push_back(rows[g].narrow(2, head, count).transpose(0, 1));  // [S, B, h, D] -> [B, S, h, D]
      head += count;
    }
  }
  return results;
}

std::vector<at::Tensor> tokens_to_heads(const std::vector<TravelGroup>& groups, const ProcessGroup& ulysses,
                                        const std::function<void()>& meanwhile) {
  const int ranks = ulysses.size(), rank = ulysses.rank();
  if (ranks == 1) {
    if (meanwhile) meanwhile();
    return tensors_of(groups);
  }
  const Sizes sizes(groups);
  std::vector<int64_t> sent, received;
  for (int peer = 0; peer < ranks; ++peer) {
    sent.push_back(message_elements(groups, sizes, peer, rank));
    received.push_back(message_elements(groups, sizes, rank, peer));
  }
  const auto input = pack_tokens(groups, sizes, sum_of(sent), rank, ranks);
  const auto output = at::empty({sum_of(received)}, sizes.options);
  auto travelling = all_to_all(output, input, received, sent, ulysses);
  if (meanwhile) meanwhile();
  travelling.wait();
  return unpack_heads(output, groups, sizes, rank, ranks);
}

}  // namespace pardiff::attention
