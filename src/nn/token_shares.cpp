#include "nn/token_shares.h"

#include <ATen/ATen.h>

namespace pardiff::nn {

at::Tensor own_share(const at::Tensor& whole, int64_t dim, const SequenceLayout& layout, const ProcessGroup& group) {
  const auto span = layout.spans(group.rank()).front();
  return whole.narrow(dim, span.start, span.length);
}

at::Tensor gather_shares(const at::Tensor& share, int64_t dim, const SequenceLayout& layout,
                         const ProcessGroup& group) {
  const auto front = share.movedim(dim, 0).contiguous();  // a rank's share is one stretch of memory
  const int64_t row = c10::multiply_integers(front.sizes().slice(1));
  std::vector<int64_t> counts;
  for (int rank = 0; rank < group.size(); ++rank) counts.push_back(layout.local_length(rank) * row);
  auto shape = front.sizes().vec();
  shape[0] = layout.length();
  const auto whole = at::empty(shape, front.options());
  all_gather(whole, front, counts, group).wait();
  return whole.movedim(0, dim);
}

}  // namespace pardiff::nn
