#pragma once
#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <vector>

namespace pardiff::testing {

/// The message of the `Kind` that `call` must throw.
template <typename Kind, typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// Fails unless `message` contains every one of `parts`.
void expect_mentions(const std::string& message, const std::vector<std::string>& parts);

/// Expects `action` to throw a `Kind` whose message contains every one of `parts`; returns the message.
template <typename Kind, typename Action>
std::string expect_failure(const Action& action, const std::vector<std::string>& parts) {
  const auto message = refusal<Kind>(action);
  expect_mentions(message, parts);
  return message;
}

}  // namespace pardiff::testing
