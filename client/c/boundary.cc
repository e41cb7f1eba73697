#include "client/c/boundary.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "common/protocol_version.h"

namespace hyperframes {
namespace {

// A plain array: no destructor runs at thread exit, and no allocation can fail in an error path.
thread_local char last_error[kLongestError] = "";

std::atomic<bool> used{false};
std::atomic<bool> forked{false};

void MarkChild() {
  if (used.load(std::memory_order_relaxed)) forked.store(true, std::memory_order_relaxed);
}

// At load, not at first use: pthread_atfork itself must not race with a fork.
const int registered = pthread_atfork(nullptr, nullptr, &MarkChild);

}  // namespace

bool ForkedAfterUse() { return forked.load(std::memory_order_relaxed); }

absl::Status CheckNotForked() {
  if (ForkedAfterUse()) {
    return absl::FailedPreconditionError(
        "this process was forked from one that uses HyperFrames, and the library's threads did not "
        "come along; start worker processes with spawn or exec (torch: "
        "multiprocessing_context=\"spawn\"), or call HyperFrames only in the parent");
  }
  // Without pthread_atfork (no memory at load) a fork goes unnoticed: better not to start at all.
  if (registered != 0) return absl::InternalError("pthread_atfork failed when the library loaded");
  used.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

hf_code Report(const absl::Status& status) {
  if (status.ok()) return HF_OK;
  size_t length = status.message().size();
  if (length >= kLongestError) {
    length = kLongestError - 1;
    // Not in the middle of a UTF-8 character.
    while (length > 0 && (status.message()[length] & 0xC0) == 0x80) --length;
  }
  std::memcpy(last_error, status.message().data(), length);
  last_error[length] = '\0';
  return static_cast<hf_code>(status.code());
}

absl::Status RequireArgument(const void* pointer, const char* argument) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", argument, "` is NULL"));
}

absl::Status CopyOut(const std::string& text, char** out) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory in this process for ", text.size(), " bytes"));
  }
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
  return absl::OkStatus();
}

}  // namespace hyperframes

extern "C" {

uint32_t hf_abi_version(void) {
  return (static_cast<uint32_t>(HF_ABI_MAJOR) << 16) | static_cast<uint32_t>(HF_ABI_MINOR);
}

const char* hf_version(void) { return hyperframes::kReleaseVersion; }

const char* hf_last_error(void) { return hyperframes::last_error; }

void hf_free(void* memory) { std::free(memory); }

}  // extern "C"
