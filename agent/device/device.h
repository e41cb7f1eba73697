// Room: agent/device. The narrow waist between the frame engine and whatever moves bytes: threads
// and memcpy (host/), or CUDA streams (cuda/). It must not know frames, plans, leases or
// gRPC.
//
// Words: a *device* is one GPU, real or simulated, or host memory as seen from one GPU. A *stream*
// is a queue of copies that run in order and asynchronously to the caller. An *event* marks a point
// in a stream. The *compute stream* is where the training program runs: a cudaStream_t on CUDA, the
// calling thread on the host backend (and then null).
#ifndef HYPERFRAMES_AGENT_DEVICE_DEVICE_H_
#define HYPERFRAMES_AGENT_DEVICE_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/copy_part.h"
#include "common/frame.h"
#include "common/shared_word.h"
#include "common/units.h"

namespace hyperframes {

// A point in a stream. Immutable once recorded; shared by whoever must wait for it. Thread-safe.
class Event {
 public:
  virtual ~Event() = default;
  // True once everything queued before it has finished. Never blocks.
  virtual bool Done() const = 0;
  // Blocks the calling thread until Done. Only drains and tests may call it on CUDA.
  virtual void Synchronize() const = 0;

  // Whether the work before it went well. Where bytes come from another node it blocks until they
  // are there, or until it is known that they will not come: Unavailable names the node and why.
  // OK at once for everything inside one node.
  virtual absl::Status Arrived() const { return absl::OkStatus(); }
  // The event that this device's streams can wait for: another one than itself only where Arrived
  // says more than they can know. It stays valid as long as this event.
  virtual const Event& OnDevice() const { return *this; }
};

// One lane. Work runs in the order in which it was queued. Thread-safe.
class Stream {
 public:
  virtual ~Stream() = default;  // Finishes what was queued.
  // Queues a copy. Both ranges stay valid until an event recorded after it is Done.
  virtual absl::Status Copy(void* to, const void* from, Bytes bytes) = 0;
  // Queues copies that may run in any order, or together: none writes what another reads or writes.
  // In few calls of the driver where there is one that can. When it fails, some may be queued.
  virtual absl::Status CopyAll(const std::vector<CopyPart>& parts);
  // Queues a fill with one byte value (chaos mode poisons freed slots with it).
  virtual absl::Status Fill(void* to, uint8_t value, Bytes bytes) = 0;
  // Work queued later starts only after `event` is Done.
  virtual absl::Status WaitFor(std::shared_ptr<const Event> event) = 0;
  virtual std::shared_ptr<const Event> Record() = 0;
  // Queues idle time; chaos mode delays lanes with it.
  virtual absl::Status Delay(absl::Duration delay) = 0;
  // Queues a store of `number` to `word`, which other processes read, and waiting until `word` has
  // reached `number` (common/shared_word.h). On CUDA `word` is in memory mapped by this device.
  // Unimplemented: a stream of a device that cannot.
  virtual absl::Status PostWord(SharedWord* /*word*/, uint32_t /*number*/) {
    return absl::UnimplementedError("this stream cannot write words");
  }
  virtual absl::Status AwaitWord(const SharedWord* /*word*/, uint32_t /*number*/) {
    return absl::UnimplementedError("this stream cannot wait for words");
  }
  // Time for which copies have occupied this stream since it was created. On CUDA zero, unless the
  // device was opened to measure.
  virtual absl::Duration copy_busy() const = 0;
};

// Bytes that this process can read and write at data(): a lease's allocation, or a mapping of one;
// or bytes of another node, which only its own streams can reach. Unmapped and closed on
// destruction.
class Memory {
 public:
  virtual ~Memory() = default;
  // Null for a lender's allocation on CUDA, which only the GPU that maps its descriptor can use.
  virtual char* data() const = 0;
  virtual Bytes bytes() const = 0;
  // The POSIX descriptor behind it (memfd, or an exported CUDA handle), owned by this object; -1
  // when it cannot be shared. A duplicate keeps the memory alive after this object has gone.
  virtual int descriptor() const = 0;
  // Blocks until copies may use the bytes: host memory is pinned for a GPU in the background. OK at
  // once for all other memory. ResourceExhausted says what limit stands in the way.
  virtual absl::Status WaitUntilUsable() const { return absl::OkStatus(); }
  // How far it is on the way there, from 0 to 1.
  virtual double usable_share() const { return 1.0; }
  // A lane to or from these bytes, whose addresses only count there: nobody may read or write them
  // directly. Null: the device's own lanes reach them. The memory outlives its streams.
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(Direction /*direction*/) {
    return std::unique_ptr<Stream>();
  }
};

struct DeviceDescription {
  std::string uuid;     // Identity everywhere: "GPU-..." on CUDA, "SIM-..." on the host backend.
  std::string name;     // For people.
  std::string backend;  // "host" or "cuda".
  Bytes total_bytes = 0;
};

// One GPU as a training process or a lender sees it. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceDescription& description() const = 0;

  // A fresh allocation on this device, zeroed, never recycled, counted against the memory limit
  // until it is destroyed. ResourceExhausted names device, bytes asked and bytes free.
  virtual absl::StatusOr<std::unique_ptr<Memory>> Allocate(Bytes bytes) = 0;

  // Maps another process's allocation of exactly `bytes` behind `descriptor` (ownership moves here)
  // for this process. Not counted against the limit. InvalidArgument when the size does not match.
  virtual absl::StatusOr<std::unique_ptr<Memory>> Map(int descriptor, Bytes bytes) = 0;

  // As the lender: takes over an allocation of exactly `bytes` that an earlier process made here,
  // which `descriptor` (ownership moves here, also when it fails) has kept alive. Counted as one of
  // Allocate. InvalidArgument: it is something else. data() may be null.
  virtual absl::StatusOr<std::unique_ptr<Memory>> Adopt(int descriptor, Bytes bytes) = 0;

  // A lane for one direction and tier, with the speed of the path between this GPU and that tier.
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(Direction direction, Tier tier) = 0;

  // An event after everything that the program has queued on `compute_stream` so far.
  virtual absl::StatusOr<std::shared_ptr<const Event>> RecordCompute(void* compute_stream) = 0;

  // The program's later work on `compute_stream` starts after `event`. On the host backend this
  // blocks the caller, and the time blocked is the exposed wait.
  virtual absl::Status ComputeWait(void* compute_stream, const Event& event) = 0;
  // Whether ComputeWait blocks its caller, whose time in it is then the exposed wait.
  virtual bool compute_wait_blocks() const { return true; }
  // Where it does not: for how long ComputeWait has made compute streams stand still since the
  // device was opened. Zero unless it was opened to measure.
  virtual absl::Duration measured_exposed_wait() const { return absl::ZeroDuration(); }

  // Bytes of total_bytes that an allocation could have now. On the host backend those that none of
  // this Device object holds; on CUDA those that nobody on the machine holds.
  virtual Bytes free_bytes() const = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_DEVICE_H_
