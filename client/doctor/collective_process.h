// The inside of the process that measures collectives: it may hang, and is ended by who started it.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_COLLECTIVE_PROCESS_H_
#define HYPERFRAMES_CLIENT_DOCTOR_COLLECTIVE_PROCESS_H_

#include <functional>
#include <string>

namespace hyperframes {
namespace doctor {

// The longest that all of it may take where nobody ends it.
constexpr int kLongestCollectivesSeconds = 120;

// Opens CUDA and NCCL, connects all GPUs that CUDA sees, and runs each collective once. Then it
// waits until `input` says by when (nanoseconds of MonotonicClock, as text up to the end of the
// input) and measures until then: who asks measures other things meanwhile. `say` gets the lines of
// collective_lines.h at once. The process should then end by _exit: what hangs stays.
void MeasureCollectives(int input, const std::function<void(const std::string&)>& say);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_COLLECTIVE_PROCESS_H_
