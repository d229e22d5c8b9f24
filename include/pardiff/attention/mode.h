#pragma once
#include <c10/core/DeviceType.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/parallel/config.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pardiff {

/// One row of the registry of modes. All rows run the same code: a head exchange (Ulysses) around a block loop (ring),
/// each over a group that has one rank where its degree is 1.
struct AttentionMode {
  std::string name;
  bool ring;     // ring_degree > 1
  bool ulysses;  // ulysses_degree > 1
  bool ring_anything;
  bool ulysses_anything;
  bool any_length;          // lengths need not divide
  bool any_heads;           // query heads need not divide
  std::string requirement;  // for the tables of the documentation
  std::string when_to_use;

  /// Why `heads` cannot be dealt to `ulysses_degree` ranks under this mode; empty if they can.
  std::string why_not_heads(int64_t heads, int ulysses_degree) const;
  /// The flag that makes this mode take any length; the ring's where both would.
  const char* lifting_flag() const { return ring ? "ring_anything" : "ulysses_anything"; }
  /// Partial results are merged, so the attention backend must return the log-sum-exp.
  bool needs_lse() const { return ring; }
};

/// Every mode, in the order of the documentation's table.
const std::vector<AttentionMode>& attention_modes();
/// The mode that a valid configuration asks for.
const AttentionMode& attention_mode(const ContextParallelConfig& config);

/// Bytes of other ranks' keys and values that the buffers of one model's attentions hold.
class RemoteKeyValueMeter {
 public:
  void add(int64_t bytes) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  int64_t peak_bytes() const { return peak_; }

 private:
  int64_t now_ = 0, peak_ = 0;
};

/// How the attentions of one model are shared.
struct AttentionSharing {
  const AttentionMode* mode = nullptr;
  ProcessGroup ring, ulysses;  // context rank = ring.rank() * ulysses.size() + ulysses.rank()
  at::DeviceType device = at::kCPU;
  bool rotate = true;  // pass blocks around the ring; else gather all of K and V
  bool convert_to_fp32 = true;
  std::shared_ptr<RemoteKeyValueMeter> meter = std::make_shared<RemoteKeyValueMeter>();

  int rank() const { return ring.rank() * ulysses.size() + ulysses.rank(); }
  int size() const { return ring.size() * ulysses.size(); }
};

}  // namespace pardiff
