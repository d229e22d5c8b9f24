#include <pardiff/core/check.h>
#include <pardiff/pipelines/flux_inputs.h>

namespace pardiff {

Prompts::Prompts(const char* text) {
  check<UsageError>(text != nullptr, "a prompt is a null pointer. Give a text, or leave it out.");
  texts_.emplace_back(text);
}

Prompts::Prompts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

}  // namespace pardiff
