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

  /// Reads the encoders' weights, unless they are there.
  void load();
  /// Frees the encoders' weights, unless they are to be kept.
  void release();
  /// Of the encoders as they were last loaded.
  const ParameterBytes& bytes() const { return bytes_; }

  /// Ids for both encoders; rank 0 warns of what is cut off. Shapes: `clip_texts` and `t5_texts` have equal lengths.
  /// Throws: UsageError for a text that is not UTF-8.
  TokenIds tokenize(const std::vector<std::string>& clip_texts, const std::vector<std::string>& t5_texts,
                    int64_t t5_length) const;
  /// Rows of `pictures` out of the batch in which every prompt has `copies` pictures, side by side. Only their prompts
  /// are encoded. The encoders must be loaded.
  Condition encode(const TokenIds& ids, int64_t copies, const SequenceSpan& pictures);

 private:
  void open();

  std::filesystem::path folder_;
  FluxPipelineOptions options_;
  World* world_;
  ClipTokenizer clip_tokenizer_;
  T5Tokenizer t5_tokenizer_;
  OpenedPart<ClipTextModel> clip_;
  OpenedPart<T5EncoderModel> t5_;
  bool loaded_ = false;
  int64_t prompt_dim_ = 0, pooled_dim_ = 0;
  ParameterBytes bytes_{};
  RunIdentity identity_;
};

}  // namespace pardiff::flux
