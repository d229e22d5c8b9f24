#pragma once
#include <cstddef>

#include "core/descriptor.h"

namespace pardiff::comm {

// Anonymous files in memory, which processes of one host map together. They have no name anywhere, so that nothing is
// left behind however the processes end. Pages are taken when first written, and read as zeros before.

/// A new file of `size` bytes, which nobody can shrink or grow; /proc/PID/maps shows `name`.
/// Throws: CommError with the system's reason.
Descriptor make_memory_file(const char* name, size_t size);

/// What another process of this host has made, by its descriptor there.
/// Throws: CommError with the system's reason, or if it does not have `size` bytes.
Descriptor open_memory_file(int pid, int descriptor, size_t size);

}  // namespace pardiff::comm
