#pragma once
#include <string>
#include <vector>

namespace pardiff::cli {

/// One horizontal bar, its parts end to end.
struct Bar {
  std::string label;
  std::vector<double> parts;
  std::string note;  // behind the bar
};

struct BarChart {
  std::string title;
  std::string axis;                // what the lengths are, with their unit
  std::vector<std::string> parts;  // names of the parts, for the legend
  std::vector<Bar> bars;

  /// A picture that any browser shows. Lengths must be finite and not negative.
  std::string to_svg() const;
};

/// "1.234", with as many digits as show a difference: four in all.
std::string four_digits(double value);

}  // namespace pardiff::cli
