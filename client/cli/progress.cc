#include "client/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/table.h"
#include "client/cli/text.h"

namespace hyperframes {
namespace {

constexpr size_t kLongestLine = 200;

}  // namespace

Progress::Options Progress::ForPeople() {
  Options options;
  const char* const wish = std::getenv("HYPERFRAMES_PROGRESS");
  if (wish != nullptr && std::string(wish) == "off") return options;
  options.out = &std::cerr;
  options.terminal = isatty(STDERR_FILENO) == 1;
  return options;
}

Progress::Progress(std::string what, Options options)
    : what_(std::move(what)),
      options_(options),
      began_(options.clock->Now()),
      said_(options.clock->Now()) {}

Progress::~Progress() {
  MutexLock lock(&mutex_);
  if (width_ > 0) *options_.out << "\n" << std::flush;
}

void Progress::SetDetail(std::string detail) {
  MutexLock lock(&mutex_);
  detail_ = std::move(detail);
}

void Progress::Look() {
  MutexLock lock(&mutex_);
  const absl::Time now = options_.clock->Now();
  if (options_.out == nullptr || now - said_ < kProgressInterval) return;
  said_ = now;
  std::string line = absl::StrCat("hfctl: ", what_);
  if (!detail_.empty()) absl::StrAppend(&line, " (", detail_, ")");
  const std::string age = AgeText(absl::ToDoubleSeconds(now - began_));
  // Bounded, and the time is what must not be cut off.
  line = absl::StrCat(Printable(line.substr(0, kLongestLine)), ", ", age);
  if (options_.terminal) {
    const size_t padding = width_ > line.size() ? width_ - line.size() : 0;
    *options_.out << "\r" << line << std::string(padding, ' ') << std::flush;
    width_ = line.size();
  } else {
    *options_.out << line << "\n" << std::flush;
  }
}

Watched::Watched(Progress* progress)
    : progress_(progress), thread_([this] {
        MutexLock lock(&mutex_);
        while (!changed_.WaitFor(&mutex_, kProgressInterval, [this] {
          mutex_.AssertHeld();
          return ended_;
        })) {
          progress_->Look();
        }
      }) {}

Watched::~Watched() {
  {
    MutexLock lock(&mutex_);
    ended_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

}  // namespace hyperframes
