#include "support/test_device.h"

#include <cstdlib>

namespace pardiff::testing {

std::string test_device() {
  const char* device = std::getenv("PARDIFF_TEST_DEVICE");
  return device ? device : "cpu";
}

}  // namespace pardiff::testing
