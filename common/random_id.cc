#include "common/random_id.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace hyperframes {
namespace {

void Fill(void* to, size_t bytes) {
  ssize_t got = -1;
  do {
    got = getrandom(to, bytes, 0);  // At most 64 bytes: all or nothing (see getrandom(2)).
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(bytes)) {
    std::perror("getrandom");
    std::abort();
  }
}

}  // namespace

std::string RandomHex(int bytes) {
  unsigned char raw[64];
  if (bytes < 1 || bytes > static_cast<int>(sizeof(raw))) std::abort();
  Fill(raw, static_cast<size_t>(bytes));
  std::string text;
  text.reserve(static_cast<size_t>(bytes) * 2);
  for (int i = 0; i < bytes; ++i) {
    text.push_back("0123456789abcdef"[raw[i] >> 4]);
    text.push_back("0123456789abcdef"[raw[i] & 15]);
  }
  return text;
}

uint64_t RandomIncarnation() {
  uint64_t incarnation = 0;
  while (incarnation == 0) Fill(&incarnation, sizeof(incarnation));
  return incarnation;
}

bool TokensEqual(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  // volatile: the compiler may not turn this into a comparison that stops early.
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace hyperframes
