#include <openssl/evp.h>
#include <pardiff/core/check.h>
#include <pardiff/io/checkpoint_digest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "io/file_bytes.h"

namespace pardiff {
namespace {

constexpr int64_t kVectorSample = 64;

class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    require(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(std::string_view bytes) { require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1); }
  void add(const at::Tensor& tensor) {
    add(std::string_view(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()));
  }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int length = 0;
    require(EVP_DigestFinal_ex(context_.get(), digest.data(), &length) == 1);
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (unsigned int i = 0; i < length; ++i) {
      text.push_back(kDigits[digest[i] >> 4]);
      text.push_back(kDigits[digest[i] & 15]);
    }
    return text;
  }

 private:
  static void require(bool done) { check<Error>(done, "libcrypto could not compute a SHA-256. Reinstall it."); }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// The ranges along dimension 0 that stand for a tensor.
std::vector<std::pair<int64_t, int64_t>> sample_of(const std::vector<int64_t>& shape) {
  const int64_t rows = shape.front(), length = std::min(rows, shape.size() == 1 ? kVectorSample : 1);
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const int64_t begin : {int64_t{0}, (rows - length) / 2, rows - length})
    ranges.emplace_back(begin, begin + length);
  return ranges;
}

}  // namespace

std::string digest_of(const Checkpoint& checkpoint) {
  Digest digest;
  for (const auto& name : checkpoint.names()) {
    const auto& info = checkpoint.info(name);
    digest.add(text_of(name, " ", info.dtype, " [", joined(info.shape), "]\n"));
    const auto sample = info.shape.empty() ? checkpoint.tensor(name)
                                           : checkpoint.tensor(name, {.dim = 0, .ranges = sample_of(info.shape)});
    digest.add(sample);
  }
  return digest.hex();
}

std::string digest_of_file(const std::filesystem::path& path) {
  const MappedReading reading;
  const auto file = MappedFile::open(path);
  Digest digest;
  digest.add(file->text());
  reading.finish();
  return digest.hex();
}

std::string digest_of_text(const std::string& text) {
  Digest digest;
  digest.add(text);
  return digest.hex();
}

}  // namespace pardiff
