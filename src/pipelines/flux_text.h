#pragma once
#include <pardiff/parallel/layout.h>
#include <pardiff/pipelines/flux_pipeline.h>

#include <filesystem>
#include <string>
#include <vector>

#include "pipelines/flux_condition.h"
#include "pipelines/part_loading.h"
#include "pipelines/run_identity.h"

namespace pardiff::flux {

/// [prompts, length], int64.
struct TokenIds {
  at::Tensor clip, t5;

  /// These rows, then those of `others`; either may have none.
  TokenIds followed_by(const TokenIds& others) const;
};

/// Tokenizers and text encoders. The encoders come and go; what the caller brought along stays.
class TextStage {
 public:
  /// Reads the tokenizers and opens the encoders' files; no weights are read.
  TextStage(const std::filesystem::path& folder, const FluxPipelineOptions& options, World& world);

  /// Widths of what `encode` returns.
  int64_t prompt_dim() const { return prompt_dim_; }
  int64_t pooled_dim() const { return pooled_dim_; }

  /// Finds out whether the encoders' files hold what they need. Throws: CheckpointError.
  void check_files() const;

  /// Configs and checkpoints of the encoders, as they were opened.
  const RunIdentity& identity() const { return identity_; }

  /// Reads the weights of both encoders, unless they are there.
  void load();
  /// Frees the encoders' weights, unless they are to be kept.
  void release();
  /// Of the encoders that this rank has loaded.
  ParameterBytes bytes() const;

  /// Ids for both encoders; rank 0 warns of what is cut off. Shapes: `clip_texts` and `t5_texts` have equal lengths.
  /// Throws: UsageError for a text that is not UTF-8.
  TokenIds tokenize(const std::vector<std::string>& clip_texts, const std::vector<std::string>& t5_texts,
                    int64_t t5_length) const;
  /// The encoded rows, in `dtype`, which do not depend on what is encoded beside them. `shared`: each encoder takes
  /// every row once, on one of the world's ranks, which alone needs the encoder; the first ranks begin with T5, the
  /// last ones with CLIP. `load_seconds` grows by what reading weights takes. Collective: every rank of the world, if
  /// shared. Throws: CheckpointError, if shared on every rank with one text.
  Condition encode(const TokenIds& ids, at::ScalarType dtype, bool shared, double& load_seconds);

 private:
  void open();
  void load_clip();
  void load_t5();
  std::filesystem::path folder_;
  FluxPipelineOptions options_;
  World* world_;
  ClipTokenizer clip_tokenizer_;
  T5Tokenizer t5_tokenizer_;
  OpenedPart<ClipTextModel> clip_;
  OpenedPart<T5EncoderModel> t5_;
  bool has_clip_ = false, has_t5_ = false;
  int64_t prompt_dim_ = 0, pooled_dim_ = 0;
  RunIdentity identity_;
};

}  // namespace pardiff::flux
