#include "attention/modes/ulysses.h"

#include <ATen/ATen.h>

#include <numeric>

namespace pardiff::attention {
namespace {

// A message between two ranks holds, group after group, rows of [B, heads of all travellers of the group, D].
int64_t row_heads(const TravelGroup& group, int rank) {
  int64_t sum = 0;
  for (const auto& traveller : group.travellers) sum += (*traveller.heads)[rank].count();
  return sum;
}

struct Sizes {
  int64_t batch, head_dim;
  at::TensorOptions options;

  explicit Sizes(const std::vector<TravelGroup>& groups)
      : batch(groups[0].travellers[0].tensor.size(0)),
        head_dim(groups[0].travellers[0].tensor.size(3)),
        options(groups[0].travellers[0].tensor.options()) {}

  int64_t elements(int64_t rows, int64_t heads) const { return rows * batch * heads * head_dim; }
};

// The part of a flat buffer that holds one group's rows, as [rows, B, heads, D].
at::Tensor rows_view(const at::Tensor& flat, int64_t& offset, int64_t rows, int64_t heads, const Sizes& sizes) {
  const int64_t count = sizes.elements(rows, heads);
  const auto view = flat.narrow(0, offset, count).view({rows, sizes.batch, heads, sizes.head_dim});
  offset += count;
  return view;
}

int64_t sum_of(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

}  // namespace

std::vector<at::Tensor> heads_to_tokens(const std::vector<TravelGroup>& groups, const ProcessGroup& ulysses) {
  const int ranks = ulysses.size(), rank = ulysses.rank();
  std::vector<at::Tensor> results;
  if (ranks == 1) {
    for (const auto& group : groups) {
      for (const auto& traveller : group.travellers) results.push_back(traveller.tensor);
    }
    return results;
  }

  const Sizes sizes(groups);
  std::vector<int64_t> sent(ranks, 0), received(ranks, 0);
  for (int peer = 0; peer < ranks; ++peer) {
    for (const auto& group : groups) {
      sent[peer] += sizes.elements(group.rows[rank], row_heads(group, peer));
      received[peer] += sizes.elements(group.rows[peer], row_heads(group, rank));
    }
  }
  const auto input = at::empty({sum_of(sent)}, sizes.options), output = at::empty({sum_of(received)}, sizes.options);
  int64_t offset = 0;
  for (int peer = 0; peer < ranks; ++peer) {
    for (const auto& group : groups) {
      const auto rows = rows_view(input, offset, group.rows[rank], row_heads(group, peer), sizes);
      int64_t head = 0;
      for (const auto& [tensor, heads] : group.travellers) {
        const auto& range = (*heads)[peer];
        rows.narrow(2, head, range.count()).copy_(tensor.narrow(2, range.begin, range.count()).transpose(0, 1));
        head += range.count();
      }
    }
  }
  all_to_all(output, input, received, sent, ulysses).wait();

  // One group: the rows of all peers lie one after the other, and each traveller is a view of them.
  std::vector<std::vector<at::Tensor>> by_group(groups.size());
  if (groups.size() == 1) {
    int64_t start = 0;
    by_group[0] = {rows_view(output, start, sum_of(groups[0].rows), row_heads(groups[0], rank), sizes)};
  } else {
    offset = 0;
    for (int peer = 0; peer < ranks; ++peer) {
      for (size_t g = 0; g < groups.size(); ++g) {
        by_group[g].push_back(rows_view(output, offset, groups[g].rows[peer], row_heads(groups[g], rank), sizes));
      }
    }
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto rows = by_group[g].size() == 1 ? by_group[g][0] : at::cat(by_group[g]);
    int64_t head = 0;
    for (const auto& traveller : groups[g].travellers) {
      const int64_t count = (*traveller.heads)[rank].count();
      results.push_back(rows.narrow(2, head, count).transpose(0, 1));  // [S, B, h, D] -> [B, S, h, D]
      head += count;
    }
  }
  return results;
}

std::vector<at::Tensor> tokens_to_heads(const std::vector<TravelGroup>& groups, const std::vector<int64_t>& heads,
                                        const ProcessGroup& ulysses) {
  const int ranks = ulysses.size(), rank = ulysses.rank();
  std::vector<at::Tensor> results;
  if (ranks == 1) {
    for (const auto& group : groups) {
      for (const auto& traveller : group.travellers) results.push_back(traveller.tensor);
    }
    return results;
  }

  const Sizes sizes(groups);
  std::vector<int64_t> sent(ranks, 0), received(ranks, 0);
  for (int peer = 0; peer < ranks; ++peer) {
    for (const auto& group : groups) {
      sent[peer] += sizes.elements(group.rows[peer], row_heads(group, rank));
      received[peer] += sizes.elements(group.rows[rank], row_heads(group, peer));
    }
  }
  const auto output = at::empty({sum_of(received)}, sizes.options);
  const bool is_one_tensor = groups.size() == 1 && groups[0].travellers.size() == 1;
  at::Tensor input;
  if (is_one_tensor) {
    input = groups[0].travellers[0].tensor.transpose(0, 1).contiguous().view({-1});  // no copy for batch 1
  } else {
    input = at::empty({sum_of(sent)}, sizes.options);
    int64_t offset = 0;
    std::vector<int64_t> first_row(groups.size(), 0);
    for (int peer = 0; peer < ranks; ++peer) {
      for (size_t g = 0; g < groups.size(); ++g) {
        const int64_t count = groups[g].rows[peer];
        const auto rows = rows_view(input, offset, count, row_heads(groups[g], rank), sizes);
        int64_t head = 0;
        for (const auto& [tensor, ranges] : groups[g].travellers) {
          const int64_t head_count = (*ranges)[rank].count();
          rows.narrow(2, head, head_count).copy_(tensor.narrow(1, first_row[g], count).transpose(0, 1));
          head += head_count;
        }
        first_row[g] += count;
      }
    }
  }
  all_to_all(output, input, received, sent, ulysses).wait();

  size_t index = 0;
  for (const auto& group : groups) {
    for (size_t t = 0; t < group.travellers.size(); ++t) {
      results.push_back(at::empty({sizes.batch, group.rows[rank], heads[index++], sizes.head_dim}, sizes.options));
    }
  }
  int64_t offset = 0;
  for (int peer = 0; peer < ranks; ++peer) {
    index = 0;
    for (const auto& group : groups) {
      const auto rows = rows_view(output, offset, group.rows[rank], row_heads(group, peer), sizes);
      int64_t head = 0;
      for (const auto& traveller : group.travellers) {
        const auto& range = (*traveller.heads)[peer];
        const auto arrived = rows.narrow(2, head, range.count()).transpose(0, 1);
        // Grouped key heads may be with several ranks, always with neighbours: a head seen before is added to.
        const int64_t seen = peer == 0 ? 0 : std::max<int64_t>(0, (*traveller.heads)[peer - 1].end - range.begin);
        const int64_t repeated = range.count() == 0 ? 0 : std::min(seen, range.count());
        const auto target = results[index++].narrow(2, range.begin, range.count());
        if (repeated > 0) target.narrow(2, 0, repeated).add_(arrived.narrow(2, 0, repeated));
        target.narrow(2, repeated, range.count() - repeated)
            .copy_(arrived.narrow(2, repeated, range.count() - repeated));
        head += range.count();
      }
    }
  }
  return results;
}

}  // namespace pardiff::attention
