#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pardiff::testing {

/// Runs `action`, expects it to throw `Kind` (not a base of it), and expects every one of `parts` in the message.
template <typename Kind, typename Action>
std::string expect_failure(const Action& action, const std::vector<std::string>& parts) {
  try {
    action();
  } catch (const Kind& error) {
    const std::string message = error.what();
    for (const auto& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    return message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error was thrown: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace pardiff::testing
