// Sizes and durations for every language that loads the library.
#include "common/units.h"

#include <cstring>

#include "client/c/boundary.h"
#include "client/c/hyperframes.h"
#include "common/status_macros.h"

using hyperframes::Guarded;
using hyperframes::RequireArgument;

extern "C" {

hf_code hf_parse_bytes(const char* text, int64_t* bytes) {
  return Guarded("hf_parse_bytes", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(text, "text"));
    HF_RETURN_IF_ERROR(RequireArgument(bytes, "bytes"));
    HF_ASSIGN_OR_RETURN(*bytes, hyperframes::ParseBytes(text));
    return absl::OkStatus();
  });
}

hf_code hf_parse_duration(const char* text, double* seconds) {
  return Guarded("hf_parse_duration", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(text, "text"));
    HF_RETURN_IF_ERROR(RequireArgument(seconds, "seconds"));
    HF_ASSIGN_OR_RETURN(const absl::Duration duration, hyperframes::ParseDuration(text));
    *seconds = absl::ToDoubleSeconds(duration);
    return absl::OkStatus();
  });
}

hf_code hf_format_bytes(int64_t bytes, char* out, int64_t capacity) {
  return Guarded("hf_format_bytes", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(out, "out"));
    if (bytes < 0) {
      return absl::InvalidArgumentError(absl::StrCat("`bytes` is ", bytes, "; must be >= 0"));
    }
    const std::string text = hyperframes::FormatBytes(bytes);
    if (capacity < static_cast<int64_t>(text.size()) + 1) {
      return absl::OutOfRangeError(absl::StrCat("`capacity` is ", capacity, "; \"", text,
                                                "\" needs ", text.size() + 1, " bytes"));
    }
    std::memcpy(out, text.c_str(), text.size() + 1);
    return absl::OkStatus();
  });
}

}  // extern "C"
