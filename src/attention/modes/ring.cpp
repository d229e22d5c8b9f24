#include "attention/modes/ring.h"

#include <ATen/ATen.h>
#include <pardiff/core/trace.h>

#include <limits>
#include <numeric>

#include "attention/modes/mask_view.h"

namespace pardiff::attention {
namespace {

constexpr double kNoKey = -std::numeric_limits<double>::infinity();

struct KeyValue {
  at::Tensor key, value;
};

at::ScalarType accumulator_dtype(const Call& call, at::ScalarType dtype) {
  if (!call.convert_to_fp32) return dtype;
  return at::promote_types(dtype, at::kFloat);
}

// Sends to the next rank of the ring what its previous one sends here.
Pending hop_along(const at::Tensor& sent, const at::Tensor& received, const ProcessGroup& ring) {
  const int rank = ring.rank(), ranks = ring.size();
  return hop(sent, (rank + 1) % ranks, received, (rank + ranks - 1) % ranks, ring);
}

// The keys and values of ring rank (rank - t) for t = 0, 1, ..., each as one flat stretch [key | value].
class RingBlocks {
 public:
  RingBlocks(const Call& call, const at::Tensor& key, const at::Tensor& value) : call_(call), own_{key, value} {
    ranks_ = call.ring.size();
    for (int rank = 0; rank < ranks_; ++rank) {
      lengths_.push_back(total_length(call.ring_spans(call.key_spans, rank)));
      counts_.push_back(2 * key.size(0) * lengths_.back() * key.size(2) * key.size(3));
    }
    if (ranks_ == 1) return;
    current_ = at::cat({key.reshape({-1}), value.reshape({-1})});
    call.rotate ? make_buffers() : gather_all();
  }
  ~RingBlocks() {
    if (call_.meter) call_.meter->add(-resident_);
  }
  RingBlocks(const RingBlocks&) = delete;
  RingBlocks& operator=(const RingBlocks&) = delete;

  int64_t length_of(int rank) const { return lengths_[rank]; }
  int rank_of(int t) const { return ((call_.ring.rank() - t) % ranks_ + ranks_) % ranks_; }

  // Returns block t and, when rotating, first sets block t + 1 in motion: it arrives while t is computed.
  KeyValue take(int t) {
    if (t == 0 && ranks_ > 1 && call_.rotate) set_in_motion(0);
    if (t == 0) return own_;
    if (!call_.rotate) return unpack(gathered_.narrow(0, offset_of(rank_of(t)), counts_[rank_of(t)]), rank_of(t));
    pending_.wait();
    current_ = next_;
    set_in_motion(t);
    return unpack(current_, rank_of(t));
  }

 private:
  void make_buffers() {
    int64_t largest = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank != call_.ring.rank()) largest = std::max(largest, counts_[rank]);
    }
    const int buffers = std::min(2, ranks_ - 1);
    for (int i = 0; i < buffers; ++i) buffers_[i] = at::empty({largest}, own_.key.options());
    hold(buffers * largest * own_.key.element_size());
  }

  void gather_all() {
    gathered_ = at::empty({offset_of(ranks_)}, own_.key.options());
    hold((gathered_.numel() - current_.numel()) * own_.key.element_size());
    all_gather(gathered_, current_, counts_, call_.ring).wait();
  }

  void hold(int64_t bytes) {
    resident_ = bytes;
    if (call_.meter) call_.meter->add(bytes);
  }

  int64_t offset_of(int rank) const { return std::accumulate(counts_.begin(), counts_.begin() + rank, int64_t{0}); }

  void set_in_motion(int t) {
    if (t + 1 == ranks_) return;
    next_ = buffers_[t % 2].narrow(0, 0, counts_[rank_of(t + 1)]);
    pending_ = hop_along(current_, next_, call_.ring);
  }

  KeyValue unpack(const at::Tensor& flat, int rank) const {
    const auto halves = flat.view({2, own_.key.size(0), lengths_[rank], own_.key.size(2), own_.key.size(3)});
    return {halves[0], halves[1]};
  }

  const Call& call_;
  KeyValue own_;
  int ranks_ = 1;
  std::vector<int64_t> lengths_, counts_;  // [ring rank]
  int64_t resident_ = 0;
  at::Tensor current_, next_, buffers_[2], gathered_;
  Pending pending_;
};

// [B, S, Hkv, D] -> [B, S, H, D]: the key head of each of this rank's query heads.
at::Tensor for_query_heads(const Call& call, const at::Tensor& x) {
  if (call.query_heads_per_key_head == 1) return x;
  std::vector<int64_t> index;
  for (auto head = call.own_query_heads().begin; head < call.own_query_heads().end; ++head) {
    index.push_back(head / call.query_heads_per_key_head - call.own_key_heads().begin);
  }
  return x.index_select(2, at::tensor(index, at::TensorOptions().dtype(at::kLong).device(x.device())));
}

// The way back: gradients of copies are added.
at::Tensor for_key_heads(const Call& call, const at::Tensor& gradient) {
  if (call.query_heads_per_key_head == 1) return gradient;
  auto sizes = gradient.sizes().vec();
  sizes[2] = call.own_key_heads().count();
  const auto sum = at::zeros(sizes, gradient.options());
  for (auto head = call.own_query_heads().begin; head < call.own_query_heads().end; ++head) {
    sum.select(2, head / call.query_heads_per_key_head - call.own_key_heads().begin)
        .add_(gradient.select(2, head - call.own_query_heads().begin));
  }
  return sum;
}

KernelInputs kernel_inputs(const Call& call, const MaskView& masks, int block, const at::Tensor& query,
                           const KeyValue& key_value) {
  KernelInputs inputs{
      query, for_query_heads(call, key_value.key), for_query_heads(call, key_value.value), {}, false, call.scale};
  inputs.is_part = call.ring.size() > 1 && call.convert_to_fp32;
  inputs.is_causal = masks.is_plain_causal(block);
  if (!inputs.is_causal) inputs.mask = masks.additive(block);
  return inputs;
}

// The running result over the blocks seen so far.
class Merged {
 public:
  Merged(const Call& call, const at::Tensor& query) : call_(call), query_(query) {}

  void add(const KernelInputs& inputs) {
    if (sum_.out.defined()) {
      sum_ = call_.backend->forward_onto(std::move(sum_), inputs);
      return;
    }
    sum_ = call_.backend->forward(inputs);
    if (call_.ring.size() == 1) return;
    sum_.out = sum_.out.to(accumulator_dtype(call_, query_.scalar_type()));
    sum_.lse = sum_.lse.to(at::kDouble);  // one number a row: cheap, and it scales whole rows
  }

  KernelOutput result() const {
    const auto lse_dtype = at::promote_types(query_.scalar_type(), at::kFloat);
    if (sum_.out.defined()) return {sum_.out.to(query_.scalar_type()), sum_.lse.to(lse_dtype)};
    const auto sizes = query_.sizes();
    return {at::zeros(sizes, query_.options()), at::full(sizes.slice(0, 3), kNoKey, query_.options().dtype(lse_dtype))};
  }

 private:
  const Call& call_;
  at::Tensor query_;
  KernelOutput sum_;
};

// The gradient of a block, [2 (key, value), batch, tokens, key heads, head_dim]. It travels one rank behind the block
// itself, each hop while the next block is in work, and comes home with one hop more.
class TravellingGradient {
 public:
  explicit TravellingGradient(const Call& call) : call_(call) {}

  // Adds this rank's part to what has arrived of the block in work, and sends it on; `next_length`: the tokens of the
  // block that arrives meanwhile.
  void add(const at::Tensor& part, int64_t next_length) {
    if (arriving_.defined()) {
      pending_.wait();
      part.add_(arriving_);
    }
    const bool is_alone = call_.ring.size() == 1;
    sent_ = part;
    auto sizes = part.sizes().vec();
    sizes[2] = next_length;
    arriving_ = is_alone ? part : at::empty(sizes, part.options());
    if (!is_alone) pending_ = hop_along(sent_, arriving_, call_.ring);
  }

  // Of this rank's own block, once every rank has added its part.
  at::Tensor home() {
    if (call_.ring.size() > 1) pending_.wait();
    return arriving_;
  }

 private:
  const Call& call_;
  at::Tensor sent_, arriving_;
  Pending pending_;
};

bool has_work(const at::Tensor& query, const at::Tensor& key) { return query.numel() > 0 && key.numel() > 0; }

}  // namespace

KernelOutput ring_forward(const Call& call, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const MaskView masks(call, query.scalar_type(), query.device());
  RingBlocks blocks(call, key, value);
  Merged merged(call, query);
  for (int t = 0; t < call.ring.size(); ++t) {
    const auto key_value = blocks.take(t);
    const int block = blocks.rank_of(t);
    if (!has_work(query, key_value.key) || !masks.sees(block)) continue;
    const TracedSpan span("attention", "block", block);
    merged.add(kernel_inputs(call, masks, block, query, key_value));
  }
  return merged.result();
}

KernelGradients ring_backward(const Call& call, const at::Tensor& grad_out, const at::Tensor& query,
                              const at::Tensor& key, const at::Tensor& value, const KernelOutput& final) {
  const auto dtype = accumulator_dtype(call, query.scalar_type());
  const MaskView masks(call, query.scalar_type(), query.device());
  // A large LSE makes the probabilities of rows without keys 0 instead of exp(-inf - -inf).
  const KernelOutput safe{final.out, final.lse.masked_fill(final.lse == kNoKey, 1e30)};
  RingBlocks blocks(call, key, value);
  auto grad_query = at::zeros(query.sizes(), query.options().dtype(dtype));

  TravellingGradient travelling(call);
  for (int t = 0; t < call.ring.size(); ++t) {
    const auto key_value = blocks.take(t);
    const int block = blocks.rank_of(t);
    const auto sizes = key_value.key.sizes();
    const auto gradient = at::zeros({2, sizes[0], sizes[1], sizes[2], sizes[3]}, query.options().dtype(dtype));
    if (has_work(query, key_value.key) && masks.sees(block)) {
      const auto parts = call.backend->backward(grad_out, kernel_inputs(call, masks, block, query, key_value), safe);
      grad_query.add_(parts.query);
      gradient[0].copy_(for_key_heads(call, parts.key.to(dtype)));
      gradient[1].copy_(for_key_heads(call, parts.value.to(dtype)));
    }
    travelling.add(gradient, blocks.length_of(blocks.rank_of(t + 1)));
  }
  const auto home = travelling.home();
  return {grad_query.to(query.scalar_type()), home[0].to(key.scalar_type()), home[1].to(value.scalar_type())};
}

}  // namespace pardiff::attention
