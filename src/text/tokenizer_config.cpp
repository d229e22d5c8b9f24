#include "text/tokenizer_config.h"

#include <pardiff/core/check.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/file_bytes.h"
#include "io/json_text.h"
#include "text/unicode_text.h"

namespace pardiff {
namespace {

constexpr int64_t kLargestConfig = 16 << 20;

class Reader {
 public:
  Reader(const nlohmann::json& config, const std::string& origin) : config_(config), origin_(origin) {
    check<CheckpointError>(config.is_object(), "cannot read ", origin, ": it holds a ", config.type_name(),
                           " where an object is expected.");
  }

  // A special token is a string, or an object that has it as "content".
  void read_token(const char* key, std::string& token) const {
    const auto entry = config_.find(key);
    if (entry == config_.end() || entry->is_null()) return;
    if (entry->is_string()) {
      token = entry->get<std::string>();
    } else if (entry->is_object() && entry->contains("content") && entry->at("content").is_string()) {
      token = entry->at("content").get<std::string>();
    } else {
      refuse(key, *entry, "a string or an object with a string \"content\"");
    }
    if (token.empty()) refuse(key, *entry, "a token that is not empty");
  }

  void read_count(const char* key, int64_t least, int64_t most, int& count) const {
    const auto entry = config_.find(key);
    if (entry == config_.end() || entry->is_null()) return;
    const std::string expected = text_of("an integer from ", least, " to ", most);
    if (!entry->is_number_integer()) refuse(key, *entry, expected);
    const bool fits = entry->is_number_unsigned() ? entry->get<uint64_t>() <= static_cast<uint64_t>(most) : true;
    if (!fits || entry->get<int64_t>() < least) refuse(key, *entry, expected);
    count = entry->get<int>();
  }

  // A tokenizer without a limit says 10^30, which no integer holds.
  void read_model_max_length(int& length) const {
    const char* const key = "model_max_length";
    const auto entry = config_.find(key);
    if (entry == config_.end() || entry->is_null()) return;
    if (!entry->is_number() || !(entry->get<double>() >= 2)) refuse(key, *entry, "a number of at least 2");
    if (entry->get<double>() <= std::numeric_limits<int>::max()) length = entry->get<int>();
  }

  void read_added_tokens(std::vector<TokenizerConfig::AddedTokenEntry>& tokens) const {
    const char* const key = "added_tokens_decoder";
    const auto entries = config_.find(key);
    if (entries == config_.end() || entries->is_null()) return;
    if (!entries->is_object()) refuse(key, *entries, "an object from ids to tokens");
    for (const auto& [id, token] : entries->items()) tokens.push_back(added_token(id, token));
  }

 private:
  TokenizerConfig::AddedTokenEntry added_token(const std::string& name, const nlohmann::json& token) const {
    const std::string key = text_of("added_tokens_decoder[", quoted(name), "]");
    int32_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0) {
      refuse(key, token, "under an id, a number from 0 on");
    }
    if (!token.is_object() || !token.contains("content") || !token["content"].is_string()) {
      refuse(key, token, "an object with a string \"content\"");
    }
    if (flag(key, token, "single_word")) {
      refuse(key, token, "without \"single_word\", which is not implemented here");
    }
    return {token["content"].get<std::string>(), id, flag(key, token, "normalized")};
  }

  bool flag(const std::string& key, const nlohmann::json& token, const char* name) const {
    if (!token.contains(name)) return false;
    if (!token[name].is_boolean()) refuse(text_of(key, ".", name), token[name], "true or false");
    return token[name].get<bool>();
  }

  [[noreturn]] void refuse(const std::string& key, const nlohmann::json& value, const std::string& expected) const {
    fail<CheckpointError>("cannot use ", origin_, ": ", key, " is ", described(value), ". It must be ", expected, ".");
  }

  const nlohmann::json& config_;
  const std::string& origin_;
};

}  // namespace

TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder, const TokenizerConfig& defaults) {
  TokenizerConfig result = defaults;
  const std::filesystem::path path = folder / "tokenizer_config.json";
  std::error_code ignored;
  if (std::filesystem::symlink_status(path, ignored).type() == std::filesystem::file_type::not_found) return result;
  const std::string text = read_whole_file(path, kLargestConfig);
  const std::string origin = path.string();
  check<CheckpointError>(is_utf8(text), "cannot read ", origin, ": it is not UTF-8. Fetch the file again.");
  const nlohmann::json config = parse_json(text, origin);
  const Reader reader(config, origin);
  reader.read_token("bos_token", result.bos_token);
  reader.read_token("eos_token", result.eos_token);
  reader.read_token("unk_token", result.unk_token);
  reader.read_token("pad_token", result.pad_token);
  reader.read_model_max_length(result.model_max_length);
  reader.read_count("extra_ids", 0, 100'000, result.extra_ids);
  reader.read_added_tokens(result.added_tokens);
  return result;
}

}  // namespace pardiff
