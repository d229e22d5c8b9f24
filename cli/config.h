#pragma once
#include <pardiff/io/config_file.h>

#include <set>
#include <string>

namespace pardiff::cli {

class Flags;

/// Gives the flags that have no value yet those of a JSON object, whose keys are the flags' names with or without their
/// dashes ("ulysses-degree", "ulysses_degree"). Keys in `passed_over` are left out.
/// Throws: UsageError for keys that are no flags (all of them, each with the flag most like it), and for a value of
/// another type than the flag's, or one that the flag does not take.
void give_values(Flags& flags, const ConfigFile& values, const std::set<std::string>& passed_over = {});

}  // namespace pardiff::cli
