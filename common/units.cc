#include "common/units.h"

#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hyperframes {
namespace {

// 0 for a unit that is not known.
double UnitFactor(const std::string& lower) {
  static constexpr std::pair<const char*, double> kUnits[] = {{"", 1},
                                                              {"b", 1},
                                                              {"kb", 1e3},
                                                              {"mb", 1e6},
                                                              {"gb", 1e9},
                                                              {"tb", 1e12},
                                                              {"kib", 1024.0},
                                                              {"mib", 1048576.0},
                                                              {"gib", 1073741824.0},
                                                              {"tib", 1099511627776.0}};
  for (const auto& [name, factor] : kUnits) {
    if (lower == name) return factor;
  }
  return 0;
}

// Values come from users and files; a message repeats only so much of them.
std::string Quoted(const std::string& text) {
  constexpr size_t kMost = 64;
  return absl::StrCat("\"", text.substr(0, kMost), text.size() > kMost ? "..." : "", "\"");
}

}  // namespace

absl::StatusOr<Bytes> ParseBytes(const std::string& text) {
  const auto refuse = [&text](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("size ", Quoted(text), " ", why,
                                                   "; write it like 60GiB, 512MiB, 1.5GB or 4096"));
  };
  const std::string trimmed(absl::StripAsciiWhitespace(text));
  if (trimmed.empty()) return refuse("is empty");
  if (trimmed[0] == '-') return refuse("is negative");
  const size_t digits = trimmed.find_first_not_of("0123456789.");
  const std::string number = trimmed.substr(0, digits);
  const std::string unit =
      digits == std::string::npos
          ? ""
          : absl::AsciiStrToLower(absl::StripAsciiWhitespace(trimmed.substr(digits)));
  const double factor = UnitFactor(unit);
  if (factor == 0) return refuse("has an unknown unit");
  double value = 0;
  if (number.empty() || !absl::SimpleAtod(number, &value)) return refuse("is not a number");
  if (factor == 1 && number.find('.') != std::string::npos)
    return refuse("is a fraction of a byte");
  int64_t whole = 0;
  // Whole numbers stay exact: a double has 53 bits.
  const bool exact = absl::SimpleAtoi(number, &whole);
  const double product = value * factor;
  if (product > std::ldexp(1.0, 62)) return refuse("is more than 2^62 bytes");
  if (exact) return whole * static_cast<Bytes>(factor);
  return static_cast<Bytes>(std::llround(product));
}

std::string FormatBytes(Bytes bytes) {
  static constexpr std::pair<const char*, Bytes> kUnits[] = {
      {"TiB", kGiB * 1024}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}};
  const Bytes magnitude = std::llabs(bytes);
  for (const auto& [name, size] : kUnits) {
    if (magnitude < size) continue;
    if (bytes % size == 0) return absl::StrCat(bytes / size, name);
    return absl::StrFormat("%.2f%s", static_cast<double>(bytes) / static_cast<double>(size), name);
  }
  return absl::StrCat(bytes, "B");
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "duration ", Quoted(text), " is not readable; write it like 5s, 250ms or 1m30s"));
  }
  return duration;
}

}  // namespace hyperframes
