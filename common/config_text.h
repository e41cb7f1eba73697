// The text side of common/config.h: lines of a file, excerpts of values, near names.
#ifndef HYPERFRAMES_COMMON_CONFIG_TEXT_H_
#define HYPERFRAMES_COMMON_CONFIG_TEXT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hyperframes {

constexpr size_t kMostValue = size_t{64} << 10;      // Characters of one value.
constexpr size_t kMostConfigFile = size_t{1} << 20;  // Bytes of one file.

// The first 64 characters, with "..." when there are more: errors repeat no more of a value.
std::string Excerpt(const std::string& text);

// The name of `names` with the fewest edits from `name`, if they are at most a third of its
// length (and at least two are allowed); else empty. The first of several.
std::string NearestName(const std::string& name, const std::vector<std::string>& names);

// Lines of the file at `path`. NotFound or FailedPrecondition name the path and errno;
// InvalidArgument: more than kMostConfigFile bytes, or a zero byte.
absl::StatusOr<std::vector<std::string>> ReadConfigLines(const std::string& path);

// `key = value  # comment`. A '#' begins a comment at the start of a line or after a blank. Both
// empty for a line with nothing else. InvalidArgument names `where` for a line without '='.
absl::Status SplitConfigLine(const std::string& where, const std::string& line, std::string* key,
                             std::string* value);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_CONFIG_TEXT_H_
