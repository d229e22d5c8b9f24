#pragma once
#include <string>

namespace pardiff::testing {

/// Where the tests that can run on a GPU compute: "cpu", or what PARDIFF_TEST_DEVICE says ("cuda" under the CTest label
/// gpu). The tests are the same; on a GPU that cannot be used they fail.
std::string test_device();

}  // namespace pardiff::testing
