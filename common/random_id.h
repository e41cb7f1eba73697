// Identities and secrets that nobody can guess.
#ifndef HYPERFRAMES_COMMON_RANDOM_ID_H_
#define HYPERFRAMES_COMMON_RANDOM_ID_H_

#include <cstdint>
#include <string>

namespace hyperframes {

// 2 * `bytes` lower-case hex digits from getrandom(2). Aborts unless 1 <= bytes <= 64, or when the
// kernel has no randomness: a weak token is worse than none.
std::string RandomHex(int bytes);

// Identity of one run of a process. Never 0.
uint64_t RandomIncarnation();

// Compares without telling by its duration where they differ. Only the length leaks.
bool TokensEqual(const std::string& a, const std::string& b);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_RANDOM_ID_H_
