#include "cli/preview.h"

#include <ATen/ATen.h>

#include "cli/contact_sheet.h"

namespace pardiff::cli {

Preview::Preview(const FluxPipeline& pipeline, Size size, int64_t every, std::filesystem::path path, bool writes)
    : pipeline_(pipeline), size_(size), every_(every), path_(std::move(path)), writes_(writes) {
  const int64_t multiple = pipeline.size_multiple();
  size_ = {size.height / multiple * multiple, size.width / multiple * multiple};
}

// Latents move along straight lines, if the model is right: x = x0 + sigma * v, so two steps show where the line ends.
at::Tensor Preview::expected_end(const StepEnd& end) const {
  const auto& sigmas = pipeline_.scheduler().sigmas();
  const double before = sigmas[end.step].item<double>(), now = sigmas[end.step + 1].item<double>();
  if (!before_.defined() || before == now) return end.latents;
  const auto latents = end.latents.to(at::kFloat);
  const auto velocity = (latents - before_.to(at::kFloat)) / (now - before);
  return (latents - now * velocity).to(end.latents.scalar_type());
}

void Preview::step_done(const StepEnd& end) {
  if (every_ == 0) return;
  const bool is_last = end.step + 1 == end.num_inference_steps;
  if ((end.step + 1) % every_ == 0 && !is_last) {
    const auto whole = end.gathered(expected_end(end));
    if (writes_) contact_sheet(pipeline_.preview(whole, size_.height, size_.width)).save(path_);
  }
  before_ = end.latents;
}

}  // namespace pardiff::cli
