#include "common/failpoint.h"

#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

struct Wanted {
  std::string name;
  int64_t pass = 1;
  std::string problem;
};

Wanted ReadWanted(const std::string& text) {
  Wanted wanted;
  const size_t colon = text.find(':');
  wanted.name = text.substr(0, colon);
  if (wanted.name.empty() ||
      (colon != text.npos &&
       (!absl::SimpleAtoi(text.substr(colon + 1), &wanted.pass) || wanted.pass < 1))) {
    wanted.problem = absl::StrCat("HYPERFRAMES_FAILPOINT is '", text.substr(0, 80),
                                  "': name a failpoint, or name:N for its N-th pass, N >= 1");
  }
  return wanted;
}

}  // namespace

namespace failpoint_internal {

const bool armed = getenv("HYPERFRAMES_FAILPOINT") != nullptr;

void Pass(const char* name) {
  static const auto* const wanted = new Wanted(ReadWanted(getenv("HYPERFRAMES_FAILPOINT")));
  static std::atomic<int64_t> passes{0};
  if (!wanted->problem.empty()) {
    std::fprintf(stderr, "%s\n", wanted->problem.c_str());
    abort();
  }
  if (wanted->name != name || passes.fetch_add(1) + 1 != wanted->pass) return;
  raise(SIGKILL);
}

}  // namespace failpoint_internal

std::string FailpointProblem(const std::string& text) { return ReadWanted(text).problem; }

}  // namespace hyperframes
