#include <iostream>
#include <string>

#include "cli/help.h"
#include "cli/subcommand.h"

namespace pardiff::cli {
namespace {

// Text as troff takes it: no line starts with a request, no hyphen becomes a dash.
std::string troff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result.push_back(c);
    }
  }
  if (result.starts_with('.') || result.starts_with('\'')) result.insert(0, "\\&");
  return result;
}

void print(const FlagSpec& flag) {
  std::cout << ".TP\n\\fB" << troff(flag.name) << "\\fR";
  if (!flag.value.empty()) std::cout << " \\fI" << troff(flag.value) << "\\fR";
  std::cout << "\n" << troff(flag.help) << "\n";
}

void print(const DescribedCommand& command) {
  std::cout << ".SH " << troff(command.usage()) << "\n" << troff(command.summary) << ".\n";
  for (const auto& group : command.groups) {
    std::cout << ".SS " << troff(group.title) << "\n";
    for (const auto& flag : group.flags) print(flag);
    if (!group.example.empty()) std::cout << ".PP\nExample:\n.PP\n.EX\n" << troff(group.example) << "\n.EE\n";
  }
}

int man() {
  std::cout << ".TH PARDIFF 1 \"\" \"" << version_line() << "\"\n"
            << ".SH NAME\npardiff \\- diffusion transformers on several ranks\n"
            << ".SH SYNOPSIS\n.B pardiff\n.I COMMAND\n[\\fIflags\\fR]\n"
            << ".SH DESCRIPTION\nMakes pictures with diffusion transformers on several GPUs or CPU ranks at once.\n"
            << ".SH EXIT STATUS\n0: done. 1: failed. 2: the command line is wrong. 128 + \\fIn\\fR: ended by signal "
            << "\\fIn\\fR.\n";
  for (const auto& command : described_commands()) print(command);
  return 0;
}

}  // namespace

Action declare_man(Flags& flags) {
  flags.group("Flags", "pardiff man");
  return [] { return man(); };
}

}  // namespace pardiff::cli
