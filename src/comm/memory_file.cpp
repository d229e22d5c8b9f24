#include "comm/memory_file.h"

#include <fcntl.h>
#include <pardiff/core/check.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace pardiff::comm {

Descriptor make_memory_file(const char* name, size_t size) {
  Descriptor file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // A page that is mapped must stay there.
  const bool made = file.get() >= 0 && ftruncate(file.get(), static_cast<off_t>(size)) == 0 &&
                    fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  check<CommError>(made, "no shared memory (", size, " bytes for ", name, "): ", std::strerror(errno));
  return file;
}

Descriptor open_memory_file(int pid, int descriptor, size_t size) {
  const std::string path = text_of("/proc/", pid, "/fd/", descriptor);
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status = {};
  const bool opened = file.get() >= 0 && fstat(file.get(), &status) == 0;
  check<CommError>(opened, "cannot open the shared memory of process ", pid, ": ", std::strerror(errno));
  check<CommError>(static_cast<size_t>(status.st_size) == size, "the shared memory of process ", pid, " has ",
                   status.st_size, " bytes, and this one expects ", size);
  return file;
}

}  // namespace pardiff::comm
