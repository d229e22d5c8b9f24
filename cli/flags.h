#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

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

/// A flag or argument, as help, completion, manual and configuration files see it.
struct FlagSpec {
  enum class Kind { kText, kTexts, kPath, kInteger, kReal, kChoice, kToggle, kArgument };

  std::string name;  // "--height"; of an argument "DIR"
  Kind kind;
  std::string value;  // what stands for its value: "N", "FILE", "auto|cpu"; empty for a toggle
  std::string help;
  std::vector<std::string> choices{};
  /// Checks and stores a value; a toggle's is ignored. Throws: UsageError.
  std::function<void(const std::string&)> take{};
};

/// Flags that stand together in the help.
struct FlagGroup {
  std::string title;
  std::string example;  // a command that works as it stands
  std::vector<FlagSpec> flags{};
};

/// Declares flags whose values are checked as they are parsed: what is not a number, out of range, given twice or not
/// among the choices throws UsageError naming flag, value and what is accepted.
class Flags {
 public:
  explicit Flags(CLI::App& app) : app_(app) {}
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// What is declared from here on belongs to a group of this title.
  Flags& group(const std::string& title, const std::string& example);

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
  Flags& argument(const std::string& name, std::string& target, const std::vector<std::string>& choices,
                  const std::string& help);
  /// Further arguments after those: any number, also none.
  Flags& arguments(const std::string& name, std::vector<std::string>& target, const std::string& help);

  const std::vector<FlagGroup>& groups() const { return groups_; }
  /// Null if there is no such flag.
  const FlagSpec* find(const std::string& flag) const;
  /// The names of all flags, without arguments.
  std::vector<std::string> names() const;
  /// Whether the flag has got a value, on the command line or from elsewhere.
  bool is_given(const std::string& flag) const { return given_.contains(flag); }
  /// Gives a flag that was not given a value from elsewhere. Throws: UsageError, as on the command line.
  void give(const FlagSpec& flag, const std::vector<std::string>& values);

 private:
  CLI::Option* single(FlagSpec spec);
  FlagSpec& add(FlagSpec spec);

  CLI::App& app_;
  std::vector<FlagGroup> groups_;
  std::set<std::string> given_;
};

/// The one of `names` that looks most like `name`; empty if none does.
std::string nearest(const std::string& name, const std::vector<std::string>& names);

/// Throws: UsageError unless `text` is a whole number within `range`.
int64_t parse_integer(const std::string& flag, const std::string& text, Range range);
/// Throws: UsageError unless `text` is a finite number within `range`.
double parse_real(const std::string& flag, const std::string& text, RealRange range);
/// "10GB", "500MB", "64KiB" or plain bytes. Throws: UsageError.
int64_t parse_bytes(const std::string& flag, const std::string& text);

}  // namespace pardiff::cli
