// The backends that the conformance tests run on, each with what such a test needs: a GPU that
// computes, a peer and host memory that lend, and a way to look at bytes wherever they are.
#ifndef HYPERFRAMES_AGENT_DEVICE_CONFORMANCE_BACKENDS_H_
#define HYPERFRAMES_AGENT_DEVICE_CONFORMANCE_BACKENDS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/device/device.h"
#include "common/units.h"

namespace hyperframes {

class ConformanceBackend {
 public:
  // "host" or "cuda". NotFound or Unimplemented: this machine or build has no such GPUs, and the
  // sentence says what is missing; the test is then skipped.
  static absl::StatusOr<std::unique_ptr<ConformanceBackend>> Open(const std::string& name);
  virtual ~ConformanceBackend() = default;

  virtual Device* compute() = 0;
  // Another GPU; on a machine with one, that one again.
  virtual Device* peer() = 0;
  virtual Device* host() = 0;

  // Usable memory of `lender` for compute(). Fails the test, and returns null, where it cannot be.
  std::unique_ptr<Memory> Borrow(Device* lender, Bytes bytes);
  std::unique_ptr<Stream> CreateStream(Direction direction, Tier tier);

  // The bytes at `data`, wherever that is, once everything on `after` has finished.
  std::vector<char> Read(Stream* after, const void* data, Bytes bytes);

  // Work of the program on its compute stream (the default stream; on the host backend the calling
  // thread): overwrites memory, as the next kernel would.
  virtual void FillOnCompute(void* data, char value, Bytes bytes) = 0;
  // The bytes at `data` as the program's compute stream sees them, behind its earlier work.
  virtual std::vector<char> ReadOnCompute(const void* data, Bytes bytes) = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CONFORMANCE_BACKENDS_H_
