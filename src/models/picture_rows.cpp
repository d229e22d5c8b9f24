#include "models/picture_rows.h"

#include <ATen/ATen.h>

#include <memory>
#include <utility>
#include <vector>

#include "nn/token_shares.h"

namespace pardiff {
namespace {

// A row as it travels: channels last, whatever the picture's order.
at::Tensor sendable(const at::Tensor& row) { return row.permute({0, 2, 3, 1}).contiguous(); }

at::Tensor nothing_like(const at::Tensor& x) { return at::empty({0}, x.options()); }

// Mean and sum of squared distances from it, of every group of channels: [2, groups], float64.
at::Tensor moments(const at::Tensor& x, int64_t groups) {
  const auto options = x.options().dtype(at::kDouble);
  if (x.numel() == 0) return at::zeros({2, groups}, options);
  const auto wide = at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
  const auto [channel_mean, channel_variance] = at::batch_norm_update_stats(wide, {}, {}, 0.0);
  const auto means = channel_mean.to(at::kDouble).view({groups, -1});
  const auto variances = channel_variance.to(at::kDouble).view({groups, -1});
  const auto mean = means.mean(1);
  const auto squares = (variances + at::square(means - mean.unsqueeze(1))).sum(1) * (x.size(2) * x.size(3));
  return at::stack({mean, squares});
}

struct Statistics {
  at::Tensor mean, variance;  // [groups], float64
};

// `all`: every rank's moments, [ranks, 2, groups]; `counts`: the values of a group of channels that each rank has.
Statistics together(const at::Tensor& all, const std::vector<int64_t>& counts) {
  const auto weights = at::tensor(counts, at::kDouble).to(all.device()).unsqueeze(1);
  const auto total = weights.sum();
  const auto means = all.select(1, 0), squares = all.select(1, 1);
  const auto mean = (weights * means).sum(0) / total;
  return {mean, (squares + weights * at::square(means - mean)).sum(0) / total};
}

// An attention's sharing while this lives.
class SharedFor {
 public:
  SharedFor(Attention& attention, std::shared_ptr<const AttentionSharing> sharing)
      : attention_(attention), before_(attention->sharing()) {
    attention_->share(std::move(sharing));
  }
  ~SharedFor() { attention_->share(before_); }
  SharedFor(const SharedFor&) = delete;
  SharedFor& operator=(const SharedFor&) = delete;

 private:
  Attention& attention_;
  std::shared_ptr<const AttentionSharing> before_;
};

}  // namespace

PictureRows::PictureRows(int64_t height, ProcessGroup group)
    : group_(std::move(group)), layout_(SequenceLayout::split(height, group_.size())) {}

bool PictureRows::has_rows(int rank) const {
  return rank >= 0 && rank < group_.size() && layout_.local_length(rank) > 0;
}

PictureRows PictureRows::doubled() const {
  std::vector<int64_t> lengths;
  for (int rank = 0; rank < group_.size(); ++rank) lengths.push_back(2 * layout_.local_length(rank));
  auto twice = *this;
  twice.layout_ = SequenceLayout::of_lengths(lengths);
  return twice;
}

at::Tensor PictureRows::own(const at::Tensor& whole) const {
  return are_whole() ? whole : nn::own_share(whole, 2, layout_, group_);
}

at::Tensor PictureRows::gathered(const at::Tensor& own_rows) const {
  return are_whole() ? own_rows : nn::gather_shares(own_rows, 2, layout_, group_).contiguous();
}

// A row of the neighbour above comes before the own rows, one of the neighbour below after them.
at::Tensor PictureRows::room_for_halo(const at::Tensor& like) const {
  const auto order = like.is_cpu() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  return at::empty({like.size(0), like.size(1), own_rows() + 2, like.size(3)}, like.options(), order);
}

void PictureRows::exchange_halo(const at::Tensor& padded) const {
  const int64_t rows = own_rows();
  if (rows == 0) return;  // whoever has none is nobody's neighbour
  const int above = group_.rank() - 1, below = group_.rank() + 1;
  const auto nothing = nothing_like(padded);
  const auto row = [&](int64_t index) { return padded.narrow(2, index, 1); };
  const auto sent = [&](int to, int64_t index) { return has_rows(to) ? sendable(row(index)) : nothing; };
  const auto arriving = [&](int from) {
    return has_rows(from) ? at::empty({padded.size(0), 1, padded.size(3), padded.size(1)}, padded.options()) : nothing;
  };
  const auto last = sent(below, rows), first = sent(above, 1), from_above = arriving(above),
             from_below = arriving(below);
  const int up = has_rows(above) ? above : group_.rank(), down = has_rows(below) ? below : group_.rank();
  hop(last, down, from_above, up, group_).wait();
  hop(first, up, from_below, down, group_).wait();
  const auto fill = [&](int64_t index, int from, const at::Tensor& received) {
    has_rows(from) ? row(index).copy_(received.permute({0, 3, 1, 2})) : row(index).zero_();
  };
  fill(0, above, from_above);
  fill(rows + 1, below, from_below);
}

at::Tensor PictureRows::convolved_with_halo(const nn::Conv2d& layer, const at::Tensor& padded) const {
  const int64_t rows = padded.size(2) - 2;
  if (rows == 0) {
    return at::empty({padded.size(0), layer->weight.size(0), 0, padded.size(3)}, padded.options());
  }
  return at::conv2d(padded, layer->weight, layer->bias, at::IntArrayRef{1, 1}, at::IntArrayRef{0, 1});
}

at::Tensor PictureRows::convolved(const nn::Conv2d& layer, const at::Tensor& x) const {
  const auto padded = room_for_halo(x);
  padded.narrow(2, 1, own_rows()).copy_(x);
  exchange_halo(padded);
  return convolved_with_halo(layer, padded);
}

at::Tensor PictureRows::activated_and_convolved(const nn::GroupNorm& norm, const nn::Conv2d& layer,
                                                const at::Tensor& x) const {
  const auto normed = normalised(norm, x);
  const auto padded = room_for_halo(x);
  auto inner = padded.narrow(2, 1, own_rows());
  if (own_rows() > 0) at::silu_out(inner, normed);
  exchange_halo(padded);
  return convolved_with_halo(layer, padded);
}

at::Tensor PictureRows::enlarged_and_convolved(const nn::Conv2d& layer, const at::Tensor& x) const {
  const auto padded = room_for_halo(x);
  padded.narrow(2, 1, own_rows()).copy_(x);
  exchange_halo(padded);
  const auto large = at::upsample_nearest2d(padded, {2 * padded.size(2), 2 * padded.size(3)});
  return convolved_with_halo(layer, large.narrow(2, 1, 2 * own_rows() + 2));  // of a neighbour's row, enlarged, one
}

at::Tensor PictureRows::normalised(const nn::GroupNorm& norm, const at::Tensor& x) const {
  const int64_t groups = norm->groups(), channels = x.size(1), each = channels / groups;
  const auto own = moments(x, groups);
  const auto all = at::empty({group_.size(), 2, groups}, own.options());
  all_gather(all, own, std::vector<int64_t>(static_cast<size_t>(group_.size()), own.numel()), group_).wait();
  if (own_rows() == 0) return x;
  std::vector<int64_t> counts;
  for (int rank = 0; rank < group_.size(); ++rank) counts.push_back(layout_.local_length(rank) * x.size(3) * each);
  const auto whole = together(all, counts);
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto per_channel = [&](const at::Tensor& of_groups) { return of_groups.repeat_interleave(each).to(dtype); };
  return at::batch_norm(x, norm->weight.to(dtype), norm->bias.to(dtype), per_channel(whole.mean),
                        per_channel(whole.variance), /*training=*/false, 0.0, norm->eps(), /*cudnn_enabled=*/false);
}

at::Tensor PictureRows::attended(Attention& attention, const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, int64_t width) const {
  auto sharing = std::make_shared<AttentionSharing>();
  sharing->mode = &attention_mode({.ring_degree = group_.size(), .ring_anything = true});
  sharing->ring = group_;
  sharing->device = query.device().type();
  const SharedFor shared(attention, std::move(sharing));
  std::vector<int64_t> tokens;
  for (int rank = 0; rank < group_.size(); ++rank) tokens.push_back(layout_.local_length(rank) * width);
  const auto layout = SequenceLayout::of_lengths(tokens);
  return attention->forward(query, key, value, {.query_layout = layout, .key_layout = layout});
}

}  // namespace pardiff
