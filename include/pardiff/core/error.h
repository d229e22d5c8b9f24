#pragma once
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace pardiff {

/// The base of everything that pardiff throws. `what()` reads "what is wrong: values. what to do."
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);

  /// The rank that saw the fault, where known.
  std::optional<int> rank() const { return rank_; }
  void set_rank(int rank) { rank_ = rank; }

  /// The calls that led here, a line each, innermost first; empty unless the log level was kDebug then.
  std::string backtrace() const { return backtrace_ ? *backtrace_ : std::string(); }

 private:
  std::shared_ptr<const std::string> backtrace_;  // shared, so that copying an exception cannot throw
  std::optional<int> rank_;
};

/// Degrees, plans, backends or options that cannot work together.
class ConfigError : public Error {
  using Error::Error;
};
/// A tensor whose shape or dtype is not what the call needs.
class ShapeError : public Error {
  using Error::Error;
};
/// A file or folder of weights, configuration or vocabulary that cannot be used.
class CheckpointError : public Error {
  using Error::Error;
};
/// Another rank is gone, late, or doing something else.
class CommError : public Error {
  using Error::Error;
};
/// A command line or request that means nothing.
class UsageError : public Error {
  using Error::Error;
};

}  // namespace pardiff
