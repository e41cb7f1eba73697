// Room: client/c. The C ABI: converts, guards, and never lets anything but a code cross the border
// (no exception, no C++ type, no crash on a null pointer). One file per idea: boundary (errors and
// fork), units, planner, machine, engine, client.
#ifndef HYPERFRAMES_CLIENT_C_BOUNDARY_H_
#define HYPERFRAMES_CLIENT_C_BOUNDARY_H_

#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/c/hyperframes.h"

namespace hyperframes {

// hf_last_error() never grows beyond this, whatever a message quotes.
constexpr size_t kLongestError = 2048;

// Remembers the message for this thread and returns the code. OK changes nothing.
hf_code Report(const absl::Status& status);

// FailedPrecondition in a child of a process that had used the library: the threads behind engines
// and channels did not come along, so a call would wait for them for ever.
absl::Status CheckNotForked();
bool ForkedAfterUse();

// InvalidArgument naming `argument` when `pointer` is null.
absl::Status RequireArgument(const void* pointer, const char* argument);

// A copy for hf_free; ResourceExhausted when there is no memory.
absl::Status CopyOut(const std::string& text, char** out);

// Runs the body of one hf_ function: fork guard, exceptions turned into codes, error remembered.
template <typename Body>
hf_code Guarded(const char* function, Body&& body) {
  const absl::Status alive = CheckNotForked();
  if (!alive.ok()) return Report(alive);
  try {
    const absl::Status status = body();
    if (status.ok()) return HF_OK;
    return Report(absl::Status(status.code(), absl::StrCat(function, ": ", status.message())));
  } catch (const std::bad_alloc&) {
    return Report(
        absl::ResourceExhaustedError(absl::StrCat(function, ": out of memory in this process")));
  } catch (const std::exception& error) {
    return Report(absl::InternalError(absl::StrCat(function, ": ", error.what())));
  }
}

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_C_BOUNDARY_H_
