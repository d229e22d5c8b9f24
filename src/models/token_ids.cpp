#include "models/token_ids.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>

namespace pardiff {

void check_token_ids(const at::Tensor& input_ids, const std::string& model, int64_t vocab_size, int64_t max_length) {
  check<ShapeError>(input_ids.defined() && input_ids.dim() == 2 && input_ids.numel() > 0, model,
                    " was given token ids of shape ",
                    input_ids.defined() ? text_of(input_ids.sizes()) : std::string("nothing"),
                    ". Give a tensor [batch, tokens] with at least one token.");
  check<ShapeError>(input_ids.scalar_type() == at::kLong || input_ids.scalar_type() == at::kInt, model,
                    " was given token ids of dtype ", input_ids.scalar_type(), ". Give integers.");
  check<ShapeError>(max_length == 0 || input_ids.size(1) <= max_length, model, " was given ", input_ids.size(1),
                    " tokens. Give at most max_position_embeddings = ", max_length, ".");
  if (!input_ids.is_cpu()) return;
  const auto lowest = input_ids.min().item<int64_t>(), highest = input_ids.max().item<int64_t>();
  check<ConfigError>(lowest >= 0 && highest < vocab_size, model, " was given token ", lowest < 0 ? lowest : highest,
                     ", outside its vocabulary of ", vocab_size,
                     ". Use the tokenizer that belongs to this text encoder.");
}

}  // namespace pardiff
