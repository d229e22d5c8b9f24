#pragma once
#include <pardiff/attention/backend.h>

// Flash attention of our own: float32 on a CPU. The engine's runs its products through MKL, which keeps to AVX2 on
// processors that are not Intel's; here they are oneDNN's.
namespace pardiff::flash_cpu {

/// Whether `forward` takes this: float32 on a CPU that oneDNN has product kernels for (AVX-512), neither masked nor
/// causal, and keys enough for products to be what takes the time.
bool takes(const KernelInputs& inputs);

/// Dao et al. 2022, arXiv 2205.14135: blocks of keys with a running maximum and sum. Every row of the result is
/// computed by one thread in one order, whatever the number of threads. The LSE of a part is float64.
KernelOutput forward(const KernelInputs& inputs);

/// Whether `forward_onto` takes these.
bool takes_onto(const KernelOutput& seen, const KernelInputs& inputs);
/// AttentionBackend::forward_onto, in place.
KernelOutput forward_onto(KernelOutput seen, const KernelInputs& inputs);

}  // namespace pardiff::flash_cpu
