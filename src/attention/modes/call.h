#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/attention/attention.h>
#include <pardiff/attention/backend.h>
#include <pardiff/attention/mode.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/parallel/layout.h>

#include <memory>
#include <vector>

namespace pardiff::attention {

/// Consecutive heads [begin, end).
struct HeadRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

/// One attention over the ranks, worked out: who holds which tokens and heads. The same arithmetic on every rank.
struct Call {
  const AttentionBackend* backend = nullptr;
  ProcessGroup ring, ulysses;
  bool rotate = true;
  bool convert_to_fp32 = true;
  double scale = 1.0;
  bool is_causal = false;
  at::Tensor mask;  // whole, 4-dimensional or undefined
  std::shared_ptr<RemoteKeyValueMeter> meter;

  // Tokens in global coordinates, in local order. [context rank] -> spans; one entry that covers all when not shared.
  std::vector<std::vector<SequenceSpan>> query_spans, key_spans;
  // [ulysses rank] -> heads
  std::vector<HeadRange> query_heads, key_heads;
  int64_t query_heads_per_key_head = 1;
  bool same_layout = false;  // query and key are shared alike, so they travel together

  int context_rank(int ring_rank, int ulysses_rank) const { return ring_rank * ulysses.size() + ulysses_rank; }
  const HeadRange& own_query_heads() const { return query_heads[ulysses.rank()]; }
  const HeadRange& own_key_heads() const { return key_heads[ulysses.rank()]; }

  /// Tokens that each rank of this rank's Ulysses group holds before the exchange.
  std::vector<int64_t> ulysses_rows(const std::vector<std::vector<SequenceSpan>>& spans) const;
  /// Positions that ring rank `ring_rank` holds after the exchange, in order.
  std::vector<SequenceSpan> ring_spans(const std::vector<std::vector<SequenceSpan>>& spans, int ring_rank) const;
};

int64_t total_length(const std::vector<SequenceSpan>& spans);

/// Checks an attention call and works it out. `sharing` may be null. Throws: ShapeError, ConfigError.
Call plan_call(const AttentionSharing* sharing, const AttentionBackend& backend, const at::Tensor& query,
               const at::Tensor& key, const at::Tensor& value, const AttentionOptions& options);

}  // namespace pardiff::attention
