#include "cli/chart.h"

#include <pardiff/core/check.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <numeric>

namespace pardiff::cli {
namespace {

constexpr double kLabelWidth = 330, kBarWidth = 460, kNoteWidth = 170, kBarHeight = 18, kPitch = 26, kTop = 70;
constexpr const char* kColours[] = {"#3b6ea5", "#d9822b", "#8a8d91", "#5a9367", "#a05195"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else {
      result.push_back(c);
    }
  }
  return result;
}

std::string text_at(double x, double y, const std::string& text, const char* more = "") {
  return text_of("<text x=\"", x, "\" y=\"", y, "\" ", more, ">", escaped(text), "</text>\n");
}

std::string box(double x, double y, double width, double height, size_t part) {
  return text_of("<rect x=\"", x, "\" y=\"", y, "\" width=\"", width, "\" height=\"", height, "\" fill=\"",
                 kColours[part % std::size(kColours)], "\"/>\n");
}

double length_of(const Bar& bar) { return std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0); }

// 1, 2 or 5 times a power of ten, so that a handful of them span `longest`.
double tick_step(double longest) {
  const double rough = longest / 5, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

}  // namespace

std::string four_digits(double value) {
  if (value == 0) return "0";
  const int digits = std::clamp(3 - static_cast<int>(std::floor(std::log10(std::abs(value)))), 0, 6);
  std::ostringstream stream;
  stream << std::fixed << std::setprecision(digits) << value;
  return stream.str();
}

std::string BarChart::to_svg() const {
  double longest = 0;
  for (const auto& bar : bars) longest = std::max(longest, length_of(bar));
  if (longest <= 0) longest = 1;
  const double scale = kBarWidth / longest, bottom = kTop + kPitch * static_cast<double>(bars.size());
  const double width = kLabelWidth + kBarWidth + kNoteWidth, height = bottom + 50;
  std::string svg = text_of("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
                            "\" font-family=\"sans-serif\" font-size=\"12\">\n",
                            "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
  svg += text_at(12, 22, title, "font-size=\"15\"");
  double x = kLabelWidth;
  for (size_t part = 0; part < parts.size(); ++part) {
    svg += box(x, 38, 12, 12, part) + text_at(x + 17, 48, parts[part]);
    x += 45 + 7 * static_cast<double>(parts[part].size());
  }
  for (double tick = 0; tick <= longest * 1.0001; tick += tick_step(longest)) {
    const double at = kLabelWidth + tick * scale;
    svg += text_of("<line x1=\"", at, "\" y1=\"", kTop - 6, "\" x2=\"", at, "\" y2=\"", bottom,
                   "\" stroke=\"#dddddd\"/>\n");
    svg += text_at(at, bottom + 16, text_of(tick), "text-anchor=\"middle\"");
  }
  svg += text_at(kLabelWidth + kBarWidth / 2, bottom + 36, axis, "text-anchor=\"middle\"");
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kTop + kPitch * static_cast<double>(i);
    svg += text_at(kLabelWidth - 8, y + 13, bars[i].label, "text-anchor=\"end\"");
    x = kLabelWidth;
    for (size_t part = 0; part < bars[i].parts.size(); ++part) {
      svg += box(x, y, bars[i].parts[part] * scale, kBarHeight, part);
      x += bars[i].parts[part] * scale;
    }
    svg += text_at(x + 6, y + 13, bars[i].note);
  }
  return svg + "</svg>\n";
}

}  // namespace pardiff::cli
