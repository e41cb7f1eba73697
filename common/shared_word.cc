#include "common/shared_word.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace hyperframes {
namespace {

// Once for every look: a word that is about to be reached costs no system call.
constexpr int kSpins = 200;
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);  // Also for a wake-up that got lost.
constexpr absl::Duration kPoll = absl::Microseconds(5);
constexpr int kPollsPerAsking = 1000;

uint32_t* Address(const SharedWord& word) {
  return reinterpret_cast<uint32_t*>(const_cast<SharedWord*>(&word));
}

}  // namespace

void PostWord(SharedWord* word, uint32_t number) {
  word->store(number, std::memory_order_seq_cst);
  syscall(SYS_futex, Address(*word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void AwaitChange(const SharedWord& word, uint32_t seen, absl::Duration patience) {
  const timespec timeout = absl::ToTimespec(patience);
  syscall(SYS_futex, Address(word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

bool AwaitWord(const SharedWord& word, uint32_t number, const std::function<bool()>& ended,
               WordWriter writer) {
  for (int polls = 0;; ++polls) {
    for (int i = 0; i < kSpins; ++i) {
      if (Reached(word.load(std::memory_order_acquire), number)) return true;
    }
    const bool asks = writer == WordWriter::kPosts || polls % kPollsPerAsking == 0;
    if (asks && ended != nullptr && ended()) {
      return Reached(word.load(std::memory_order_acquire), number);
    }
    const uint32_t seen = word.load(std::memory_order_acquire);
    if (Reached(seen, number)) return true;
    if (writer == WordWriter::kPosts) {
      AwaitChange(word, seen, kLookAgain);
    } else {
      const timespec pause = absl::ToTimespec(kPoll);
      nanosleep(&pause, nullptr);
    }
  }
}

}  // namespace hyperframes
