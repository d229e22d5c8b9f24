#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace pardiff {

// Refuses what is not a batch of token ids of a vocabulary.
// Throws: ShapeError for another shape or dtype, or more than `max_length` tokens (0: any number); ConfigError for an
// id outside the vocabulary (looked at on a CPU only: elsewhere looking would wait for the device).
void check_token_ids(const at::Tensor& input_ids, const std::string& model, int64_t vocab_size, int64_t max_length);

}  // namespace pardiff
