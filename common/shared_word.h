// 32-bit words in memory that processes share, or that a GPU writes: how far somebody has come with
// numbered work. Numbers ascend from 1 and wrap; a word is *reached* when it is at the number or
// past it. Waiters sleep on a futex, so whoever writes by PostWord wakes them at once.
#ifndef HYPERFRAMES_COMMON_SHARED_WORD_H_
#define HYPERFRAMES_COMMON_SHARED_WORD_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/time/time.h"

namespace hyperframes {

using SharedWord = std::atomic<uint32_t>;
static_assert(sizeof(SharedWord) == 4 && SharedWord::is_always_lock_free, "a plain word to others");

// Numbers up to 2^31 apart compare rightly across the wrap, as a GPU's streams compare them.
constexpr bool Reached(uint32_t word, uint32_t number) {
  return static_cast<int32_t>(word - number) >= 0;
}

// The number after `number`. Never 0, which stands for "nothing yet".
constexpr uint32_t NextNumber(uint32_t number) { return number + 1 == 0 ? 1 : number + 1; }

// Stores, and wakes waiters of every process. What was written before is visible to them.
void PostWord(SharedWord* word, uint32_t number);

enum class WordWriter {
  kPosts,   // By PostWord: waiters are woken.
  kSilent,  // A GPU, which wakes nobody: waiters look again every few microseconds.
};

// Blocks until `word` has reached `number` (true), or `ended` says that it never will (false).
// Null: it will. `ended` is asked a few times a second and must not block.
bool AwaitWord(const SharedWord& word, uint32_t number, const std::function<bool()>& ended,
               WordWriter writer = WordWriter::kPosts);

// Blocks until `word` differs from `seen`, at most for `patience`.
void AwaitChange(const SharedWord& word, uint32_t seen, absl::Duration patience);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_SHARED_WORD_H_
