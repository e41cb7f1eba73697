#include "agent/transfer/credits.h"

#include <algorithm>

#include "absl/time/time.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kAskAgain = absl::Milliseconds(50);

}  // namespace

bool Credits::Take(Bytes bytes, const std::function<bool()>& ended) {
  MutexLock lock(&mutex_);
  while (under_way_ > 0 && under_way_ + bytes > limit_) {
    if (ended()) return false;
    const Bytes seen = under_way_;
    changed_.WaitFor(&mutex_, kAskAgain, [this, seen] {
      mutex_.AssertHeld();
      return under_way_ != seen;
    });
  }
  under_way_ += bytes;
  most_under_way_ = std::max(most_under_way_, under_way_);
  return true;
}

void Credits::GiveBack(Bytes bytes) {
  MutexLock lock(&mutex_);
  under_way_ -= bytes;
  changed_.NotifyAll();
}

Bytes Credits::under_way() const {
  MutexLock lock(&mutex_);
  return under_way_;
}

Bytes Credits::most_under_way() const {
  MutexLock lock(&mutex_);
  return most_under_way_;
}

}  // namespace hyperframes
