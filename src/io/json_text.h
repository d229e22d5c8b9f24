#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace pardiff {

/// Parses JSON out of a file that may be hostile; `origin` names it in messages.
/// Throws: CheckpointError with the position if the text is not JSON, is nested deeper than 64, has millions of values,
/// or names a key twice in one object (of which nlohmann's parser would silently keep one).
nlohmann::json parse_json(std::string_view text, const std::string& origin);

/// "it is not JSON (byte 7: ...)." of a parse that failed.
std::string why_no_json(std::size_t position, const nlohmann::json::exception& error);

/// "string", "number", ...: the kind of a value, and the value itself if it is short.
std::string described(const nlohmann::json& value);

}  // namespace pardiff
