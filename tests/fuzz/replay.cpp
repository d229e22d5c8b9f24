// Drives a fuzz target without libFuzzer: every file of a corpus, and mutations of each drawn with a fixed seed. On a
// failure the last input stays in fuzz-failure.bin.
//
//   fuzz_TARGET CORPUS [mutations of each file]
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

constexpr int kMutationsOfEach = 300;
constexpr size_t kMostChanges = 4;

std::string current;

void keep_current(int signal) {
  if (FILE* file = std::fopen("fuzz-failure.bin", "wb")) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const std::string& input) {
  current = input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::vector<std::string> read_corpus(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& corpus) : corpus_(corpus) {}

  std::string mutated(std::string input) {
    for (size_t change = below(kMostChanges) + 1; change > 0; --change) change_once(input);
    return input;
  }

 private:
  size_t below(size_t bound) { return bound == 0 ? 0 : engine_() % bound; }

  void change_once(std::string& input) {
    // Numbers at the limits of types, and pieces that mean something to a reader.
    static const std::array<std::string, 14> pieces = {"-1",
                                                       "0",
                                                       "18446744073709551615",
                                                       "9223372036854775807",
                                                       "2147483648",
                                                       "1e308",
                                                       "NaN",
                                                       "null",
                                                       "[[[[",
                                                       "{\"a\":",
                                                       "\xf0\x9f\x8e\xa8",
                                                       "\xc3",
                                                       "../",
                                                       std::string(8, '\xff')};
    const size_t at = below(input.size() + 1), length = below(std::min<size_t>(input.size() - at, 16) + 1);
    switch (below(6)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(engine_());
        break;
      case 1:
        input.erase(at, length);
        break;
      case 2:
        input.insert(at, input.substr(at, length));
        break;
      case 3:
        input.replace(at, length, pieces[below(pieces.size())]);
        break;
      case 4:
        input.resize(at);
        break;
      default: {
        const auto& other = corpus_[below(corpus_.size())];
        input.replace(at, std::string::npos, other, std::min(at, other.size()), std::string::npos);
      }
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 engine_{20240817};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: %s CORPUS [mutations of each file]\n", argv[0]), 2;
  const int mutations = argc > 2 ? std::atoi(argv[2]) : kMutationsOfEach;
  const auto corpus = read_corpus(argv[1]);
  if (corpus.empty()) return std::fprintf(stderr, "%s holds no input\n", argv[1]), 2;
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, keep_current);
  Mutator mutator(corpus);
  for (const auto& input : corpus) {
    run(input);
    for (int i = 0; i < mutations; ++i) run(mutator.mutated(input));
  }
  std::printf("%zu inputs, %zu mutations\n", corpus.size(), corpus.size() * static_cast<size_t>(mutations));
  return 0;
}
