#include <pardiff/core/check.h>

#include <iostream>
#include <memory>
#include <string>

#include "cli/help.h"
#include "cli/subcommand.h"

namespace pardiff::cli {
namespace {

using Kind = FlagSpec::Kind;

bool takes_file(const FlagSpec& flag) {
  return flag.kind == Kind::kPath || flag.kind == Kind::kArgument || flag.name == "--model";
}

// In single quotes for a POSIX shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      result.push_back(c);
    }
  }
  result.push_back('\'');
  return result;
}

std::string names_of(const std::vector<DescribedCommand>& commands) {
  std::vector<std::string> names;
  for (const auto& command : commands) names.push_back(command.name);
  return joined(names, " ");
}

template <typename Visit>
void for_each_flag(const DescribedCommand& command, const Visit& visit) {
  for (const auto& group : command.groups) {
    for (const auto& flag : group.flags) {
      if (flag.kind != Kind::kArgument) visit(flag);
    }
  }
}

// What an argument without a flag may be; "" for any file.
std::vector<std::string> argument_words(const DescribedCommand& command) {
  for (const auto& group : command.groups) {
    for (const auto& flag : group.flags) {
      if (flag.kind == Kind::kArgument && !flag.choices.empty()) return flag.choices;
    }
  }
  return {};
}

void print_bash(const std::vector<DescribedCommand>& commands) {
  std::cout << "# bash completion of pardiff; made by `pardiff completion bash`\n"
               "_pardiff() {\n"
               "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
               "  COMPREPLY=()\n"
               "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
            << "    COMPREPLY=($(compgen -W '" << names_of(commands) << " --help --version' -- \"$current\"))\n"
            << "    return\n  fi\n"
               "  case \"${COMP_WORDS[1]} $before\" in\n";
  for (const auto& command : commands) {
    for_each_flag(command, [&](const FlagSpec& flag) {
      if (flag.kind == Kind::kToggle) return;
      std::cout << "    '" << command.name << " " << flag.name << "') ";
      if (!flag.choices.empty()) {
        std::cout << "COMPREPLY=($(compgen -W '" << joined(flag.choices, " ") << "' -- \"$current\"));";
      } else if (takes_file(flag)) {
        std::cout << "COMPREPLY=($(compgen -f -- \"$current\"));";
      }
      std::cout << " return ;;\n";
    });
  }
  std::cout << "  esac\n  local words=\n  case \"${COMP_WORDS[1]}\" in\n";
  for (const auto& command : commands) {
    std::vector<std::string> names = argument_words(command);
    for_each_flag(command, [&](const FlagSpec& flag) { names.push_back(flag.name); });
    std::cout << "    " << command.name << ") words='" << joined(names, " ") << "' ;;\n";
  }
  std::cout << "  esac\n"
               "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
               "  case \"$current\" in -*) ;; *) COMPREPLY+=($(compgen -f -- \"$current\")) ;; esac\n"
               "  return 0\n"
               "}\n"
               "complete -o filenames -F _pardiff pardiff\n";
}

// In a specification of _arguments, brackets and colons mean something.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') result.push_back('\\');
    result.push_back(c);
  }
  return result;
}

void print_zsh(const std::vector<DescribedCommand>& commands) {
  std::cout << "#compdef pardiff\n# zsh completion of pardiff; made by `pardiff completion zsh`\n"
               "_pardiff() {\n"
               "  if (( CURRENT == 2 )); then\n"
               "    local -a commands=(\n";
  for (const auto& command : commands) {
    std::cout << "      " << quoted(text_of(command.name, ":", zsh_text(command.summary))) << "\n";
  }
  std::cout << "    )\n    _describe 'command' commands\n    return\n  fi\n"
               "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n"
               "  case $command in\n";
  for (const auto& command : commands) {
    std::cout << "    " << command.name << ") _arguments \\\n";
    for_each_flag(command, [&](const FlagSpec& flag) {
      auto spec = text_of(flag.kind == Kind::kTexts ? "*" : "", flag.name, "[", zsh_text(flag.help), "]");
      if (!flag.choices.empty()) {
        spec += text_of(":value:(", joined(flag.choices, " "), ")");
      } else if (flag.kind != Kind::kToggle) {
        spec += takes_file(flag) ? ":file:_files" : ":value: ";
      }
      std::cout << "      " << quoted(spec) << " \\\n";
    });
    const auto words = argument_words(command);
    std::cout << "      " << quoted(words.empty() ? "*:file:_files" : text_of("*:value:(", joined(words, " "), ")"))
              << " ;;\n";
  }
  std::cout
      << "  esac\n}\nif [ \"$funcstack[1]\" = _pardiff ]; then _pardiff \"$@\"; else compdef _pardiff pardiff; fi\n";
}

// In single quotes of fish, where only quotes and backslashes are escaped.
std::string fish_quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') result.push_back('\\');
    result.push_back(c);
  }
  result.push_back('\'');
  return result;
}

void print_fish(const std::vector<DescribedCommand>& commands) {
  std::cout << "# fish completion of pardiff; made by `pardiff completion fish`\n";
  for (const auto& command : commands) {
    std::cout << "complete -c pardiff -n __fish_use_subcommand -f -a " << command.name << " -d "
              << fish_quoted(command.summary) << "\n";
  }
  for (const auto& command : commands) {
    const auto start = text_of("complete -c pardiff -n '__fish_seen_subcommand_from ", command.name, "'");
    for_each_flag(command, [&](const FlagSpec& flag) {
      std::cout << start << " -l " << flag.name.substr(2);
      if (!flag.choices.empty()) {
        std::cout << " -x -a " << fish_quoted(joined(flag.choices, " "));
      } else if (flag.kind != Kind::kToggle) {
        std::cout << (takes_file(flag) ? " -r -F" : " -x");
      }
      std::cout << " -d " << fish_quoted(flag.help) << "\n";
    });
    const auto words = argument_words(command);
    if (!words.empty()) std::cout << start << " -f -a " << fish_quoted(joined(words, " ")) << "\n";
  }
}

int completion(const std::string& shell) {
  const auto commands = described_commands();
  if (shell == "bash") print_bash(commands);
  if (shell == "zsh") print_zsh(commands);
  if (shell == "fish") print_fish(commands);
  return 0;
}

}  // namespace

Action declare_completion(Flags& flags) {
  auto shell = std::make_shared<std::string>();
  flags.group("Flags", "pardiff completion bash")
      .argument("SHELL", *shell, {"bash", "zsh", "fish"},
                "bash, zsh or fish; bash reads it from its completions folder");
  return [shell] { return completion(*shell); };
}

}  // namespace pardiff::cli
