#include "common/config_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

size_t Edits(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// What tells two paths apart is their end.
std::string PathExcerpt(const std::string& path) {
  constexpr size_t kMost = 512;
  return path.size() <= kMost ? path : absl::StrCat("...", path.substr(path.size() - kMost));
}

absl::Status CannotRead(const std::string& path) {
  const int error = errno;
  const std::string message =
      absl::StrCat("cannot read config file ", PathExcerpt(path), ": ", std::strerror(error),
                   " (errno ", error, "); give --config a readable file, or leave it out");
  return error == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
}

}  // namespace

std::string Excerpt(const std::string& text) {
  constexpr size_t kMost = 64;
  return text.size() <= kMost ? text : absl::StrCat(text.substr(0, kMost), "...");
}

std::string NearestName(const std::string& name, const std::vector<std::string>& names) {
  if (name.size() > 64) return "";
  std::string best;
  size_t fewest = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const size_t edits = Edits(name, candidate);
    if (edits >= fewest || edits >= candidate.size()) continue;
    fewest = edits;
    best = candidate;
  }
  return best;
}

absl::StatusOr<std::vector<std::string>> ReadConfigLines(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return CannotRead(path);
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t got = read(file.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return CannotRead(path);
    if (got == 0) break;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMostConfigFile) {
      return absl::InvalidArgumentError(absl::StrCat("config file ", PathExcerpt(path),
                                                     " has more than ", kMostConfigFile,
                                                     " bytes; it holds `key = value` lines"));
    }
  }
  if (text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("config file ", PathExcerpt(path),
                                                   " is not text; it holds `key = value` lines"));
  }
  return std::vector<std::string>(absl::StrSplit(text, '\n'));
}

absl::Status SplitConfigLine(const std::string& where, const std::string& line, std::string* key,
                             std::string* value) {
  std::string content = line;
  for (size_t at = content.find('#'); at != std::string::npos; at = content.find('#', at + 1)) {
    if (at != 0 && content[at - 1] != ' ' && content[at - 1] != '\t') continue;
    content.resize(at);
    break;
  }
  key->clear();
  value->clear();
  content = std::string(absl::StripAsciiWhitespace(content));
  if (content.empty()) return absl::OkStatus();
  const size_t equals = content.find('=');
  const std::string name(absl::StripAsciiWhitespace(content.substr(0, equals)));
  if (equals == std::string::npos || name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": \"", Excerpt(content), "\" is no `key = value` line"));
  }
  *key = name;
  *value = std::string(absl::StripAsciiWhitespace(content.substr(equals + 1)));
  return absl::OkStatus();
}

}  // namespace hyperframes
