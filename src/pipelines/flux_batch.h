#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/comm/world.h>
#include <pardiff/models/model.h>
#include <pardiff/parallel/layout.h>
#include <pardiff/pipelines/flux_inputs.h>

#include <cstdint>
#include <optional>

namespace pardiff::flux {

/// Throws: ConfigError if a call has fewer pictures than there are dp groups for them, or one pass a step for two
/// groups (cfg). Pure.
void check_batch(const FluxPipelineInputs& inputs, const ParallelConfig& config);

/// Whether a call has fewer pictures than groups for them, so that fsdp ranks must share pictures' tokens. Pure.
bool needs_folding(const ParallelConfig& config, int64_t pictures);

/// Groups of ranks that make different pictures; 1 unless the model's parallelism has dp or fsdp.
int64_t picture_groups(const Model& transformer);

/// What this rank's group does of a call: its pictures (dp, fsdp), and its pass of true guidance (cfg). Without those
/// axes everything.
class BatchShare {
 public:
  /// Which of the two passes of true guidance this rank runs.
  enum class Pass { kBoth, kPositive, kNegative };

  /// Collective: every rank of the world.
  BatchShare(const Model& transformer, int64_t pictures, World& world);

  /// This group's pictures within the batch; the first `pictures` mod groups of them have one more.
  SequenceSpan pictures() const { return layout_.spans(groups_.rank()).front(); }
  /// This group's rows of a tensor whose rows are pictures.
  at::Tensor own(const at::Tensor& rows) const;
  /// All groups' rows. Collective: every rank of the world.
  at::Tensor gathered(const at::Tensor& own_rows) const;

  Pass pass() const { return pass_; }
  /// The predictions of both passes, positive first, from this rank's. Shapes: as `own`; returns [2, ...].
  /// Collective: the ranks that hold the same tokens of the same pictures.
  at::Tensor both_passes(const at::Tensor& own) const;

  /// The ranks that have the same pictures, who share the rows of each one in decoding. Where nothing is parallel every
  /// rank has all pictures, and rank 0 decodes alone.
  const ProcessGroup& decoding() const { return decoding_; }
  bool decodes() const { return leads_ || decoding_.size() > 1; }
  /// True on one rank of every group, which reports its group's pictures.
  bool leads() const { return leads_; }
  /// All groups' pictures on rank 0, in order; undefined elsewhere. Shapes: [own pictures, ...].
  /// Collective: the ranks that lead.
  at::Tensor on_rank_0(const at::Tensor& own_pictures) const;

 private:
  ProcessGroup groups_;  // one rank of each group of pictures
  SequenceLayout layout_;
  ProcessGroup passes_;
  Pass pass_ = Pass::kBoth;
  ProcessGroup decoding_;
  bool leads_ = false;
  at::Device device_;
};

}  // namespace pardiff::flux
