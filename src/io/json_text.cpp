#include "io/json_text.h"

#include <pardiff/core/check.h>

#include <set>
#include <vector>

#include "io/file_bytes.h"

namespace pardiff {
namespace {

// Reads the events of a parse without building anything, and stops at the first thing that a tree would hide.
class StrictEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit StrictEvents(const std::string& origin) : origin_(origin) {}

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(string_t& name) override {
    check<CheckpointError>(keys_.back().insert(name).second, "cannot read ", origin_, ": the key ", in_quotes(name),
                           " stands twice in one object. Remove one of them.");
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    fail<CheckpointError>("cannot read ", origin_, ": ", why_no_json(position, error),
                          " Correct it, or fetch the file again.");
  }

 private:
  bool enter() {
    constexpr std::size_t kDeepest = 64;
    check<CheckpointError>(keys_.size() < kDeepest, "cannot read ", origin_, ": its JSON is nested deeper than ",
                           kDeepest, " levels.");
    keys_.emplace_back();
    return count();
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  // A value takes two bytes of text but 16 and more of memory.
  bool count() {
    constexpr int64_t kMost = 4'000'000;
    check<CheckpointError>(++values_ <= kMost, "cannot read ", origin_, ": its JSON has more than ", kMost, " values.");
    return true;
  }

  const std::string& origin_;
  int64_t values_ = 0;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

// The library's text begins with a name of its own: "[json.exception.parse_error.101] parse error at line 1, ...".
std::string why_no_json(std::size_t position, const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const auto colon = text.find(": ");
  return text_of("it is not JSON (byte ", position, colon == std::string::npos ? "" : text.substr(colon), ").");
}

nlohmann::json parse_json(std::string_view text, const std::string& origin) {
  StrictEvents events(origin);
  nlohmann::json::sax_parse(text, &events);
  return nlohmann::json::parse(text);
}

std::string described(const nlohmann::json& value) {
  constexpr std::size_t kLongest = 80;
  if (value.is_structured() && value.size() > 8) return text_of("a long ", value.type_name());
  const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

}  // namespace pardiff
