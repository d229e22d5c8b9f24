#include "pipelines/sha256.h"

#include <ATen/ATen.h>
#include <openssl/evp.h>
#include <pardiff/core/check.h>

#include <array>

namespace pardiff {

std::string sha256(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  const bool done = EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) == 1;
  check<Error>(done, "libcrypto could not compute a SHA-256. Reinstall it.");
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) {
    hex.push_back(kDigits[digest[i] >> 4]);
    hex.push_back(kDigits[digest[i] & 15]);
  }
  return hex;
}

std::string sha256(const at::Tensor& tensor) {
  const auto bytes = tensor.cpu().contiguous();
  return sha256(std::string_view(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()));
}

}  // namespace pardiff
