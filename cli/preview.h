#pragma once
#include <pardiff/pipelines/flux_pipeline.h>

#include <cstdint>
#include <filesystem>
#include <utility>

namespace pardiff::cli {

/// Writes what the pictures of a run will look like, small, every so many of its steps: the latents without the noise
/// that the next steps are expected to remove. Every rank has one.
class Preview {
 public:
  struct Size {
    int64_t height, width;  // pixels, as asked for
  };

  /// `every`: 0 for never. Rank 0 (`writes`) writes to `path`.
  Preview(const FluxPipeline& pipeline, Size size, int64_t every, std::filesystem::path path, bool writes);

  /// To be called at the end of every step. Collective: every rank that runs the step; one gather for a preview, none
  /// in between. Throws: CheckpointError if the file cannot be written.
  void step_done(const StepEnd& end);

 private:
  at::Tensor expected_end(const StepEnd& end) const;

  const FluxPipeline& pipeline_;
  Size size_;
  int64_t every_;
  std::filesystem::path path_;
  bool writes_;
  at::Tensor before_{};  // this rank's latents a step ago
};

}  // namespace pardiff::cli
