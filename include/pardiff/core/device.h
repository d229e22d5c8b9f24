#pragma once
#include <string>

namespace pardiff {

/// Opens the CUDA part of the library (once) and looks for devices.
/// Returns why CUDA cannot be used here, or nothing if it can.
std::string why_no_cuda();

/// A function of the CUDA part by its unmangled name; null where that part is missing.
void* cuda_function(const char* name);

/// CPU cores that this process may run on; at least 1.
int allowed_cores();

}  // namespace pardiff
