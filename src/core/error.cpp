#include <c10/util/Backtrace.h>
#include <pardiff/core/error.h>
#include <pardiff/core/log.h>

namespace pardiff {

Error::Error(const std::string& message) : std::runtime_error(message) {
  constexpr size_t kOwnFrames = 2;  // this constructor and the derived one
  if (log_level() >= LogLevel::kDebug) {
    backtrace_ = std::make_shared<const std::string>(c10::get_backtrace(kOwnFrames));
  }
}

}  // namespace pardiff
