#pragma once
#include <CLI/App.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pardiff::cli {

/// The values that an integer flag takes.
struct Range {
  int64_t least;
  int64_t most;
};

/// The real numbers that a flag takes, both ends included.
struct RealRange {
  double least;
  double most;
};

/// Declares flags whose values are checked as they are parsed: what is not a number, out of range, given twice or not
/// among the choices throws UsageError naming flag, value and what is accepted.
class Flags {
 public:
  explicit Flags(CLI::App& app) : app_(app) {}

  Flags& text(const std::string& flag, std::string& target, const std::string& help);
  /// May be repeated; an empty text counts.
  Flags& texts(const std::string& flag, std::vector<std::string>& target, const std::string& help);
  Flags& path(const std::string& flag, std::filesystem::path& target, const std::string& help);
  Flags& integer(const std::string& flag, int64_t& target, Range range, const std::string& help);
  Flags& integer(const std::string& flag, std::optional<int64_t>& target, Range range, const std::string& help);
  Flags& real(const std::string& flag, double& target, RealRange range, const std::string& help);
  Flags& choice(const std::string& flag, std::string& target, const std::vector<std::string>& choices,
                const std::string& help);
  Flags& toggle(const std::string& flag, bool& target, const std::string& help);
  /// A required argument without a flag, named in capitals: "DIR".
  Flags& argument(const std::string& name, std::string& target, const std::string& help);

 private:
  CLI::Option* single(const std::string& flag, const std::string& help,
                      const std::function<void(const std::string&)>& take);

  CLI::App& app_;
};

/// Throws: UsageError unless `text` is a whole number within `range`.
int64_t parse_integer(const std::string& flag, const std::string& text, Range range);
/// Throws: UsageError unless `text` is a finite number within `range`.
double parse_real(const std::string& flag, const std::string& text, RealRange range);
/// "10GB", "500MB", "64KiB" or plain bytes. Throws: UsageError.
int64_t parse_bytes(const std::string& flag, const std::string& text);

}  // namespace pardiff::cli
