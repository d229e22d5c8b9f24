#pragma once
#include <pardiff/attention/backend.h>

namespace pardiff {

const AttentionBackend& math_attention();
const AttentionBackend& native_attention();
const AttentionBackend& native_flash_attention();
const AttentionBackend& native_efficient_attention();
const AttentionBackend& native_cudnn_attention();
/// The fastest kernel for CUDA that can do `needs`; math where none can.
const AttentionBackend& cuda_attention_for(const KernelNeeds& needs);

/// Rows of a mask that hides every key: boolean, [B|1, H|1, Sq|1].
at::Tensor dead_rows(const at::Tensor& additive_mask);
/// Makes the rows of `output` without any key what KernelOutput promises.
void clear_dead_rows(KernelOutput& output, const at::Tensor& additive_mask);

}  // namespace pardiff
