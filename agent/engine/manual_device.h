// A device for tests whose lanes stand still until somebody steps them: every interleaving that
// threads or a GPU could produce is a choice of the test, and a failure repeats exactly.
#ifndef HYPERFRAMES_AGENT_ENGINE_MANUAL_DEVICE_H_
#define HYPERFRAMES_AGENT_ENGINE_MANUAL_DEVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/device/device.h"
#include "common/clock.h"

namespace hyperframes {

class ManualDevice;

// A queue of work that runs one piece per Step. For one thread only.
class ManualStream final : public Stream {
 public:
  ManualStream(ManualDevice* device, std::string name);
  ~ManualStream() override;

  absl::Status Copy(void* to, const void* from, Bytes bytes) override;
  // One piece of work, in which the last copy comes first.
  absl::Status CopyAll(const std::vector<CopyPart>& parts) override;
  absl::Status Fill(void* to, uint8_t value, Bytes bytes) override;
  absl::Status WaitFor(std::shared_ptr<const Event> event) override;
  std::shared_ptr<const Event> Record() override;
  absl::Status Delay(absl::Duration delay) override;
  absl::Duration copy_busy() const override { return absl::ZeroDuration(); }

  // The test's own work: what a kernel of the program would do.
  void Run(std::function<void()> work);
  // Runs the first piece of work. False: nothing to do, or it waits for an event.
  bool Step();
  bool idle() const { return queue_.empty(); }
  const std::string& name() const { return name_; }

 private:
  struct Work {
    std::shared_ptr<const Event> wait_for;
    std::function<void()> run;
  };

  ManualDevice* const device_;
  const std::string name_;  // "out/peer", "in/host", "compute".
  std::deque<Work> queue_;
};

// For one thread only. Streams must not outlive it. A compute_stream is a ManualStream*; null is
// compute().
class ManualDevice final : public Device {
 public:
  enum class Compute {
    kBlocking,  // As on the host backend: ComputeWait steps lanes until the event is done.
    kQueued,    // As on CUDA: the program's work is queued on a compute stream, and waits are too.
  };

  // `clock` advances by a millisecond with every step; may be null.
  explicit ManualDevice(Compute compute, FakeClock* clock = nullptr);

  // The lane of this name is stepped first whenever it can move.
  void Prefer(const std::string& name) { preferred_ = name; }
  // Lanes are stepped in a random order instead.
  void Shuffle(uint64_t seed);
  ManualStream* compute() { return compute_.get(); }

  // A second compute stream.
  std::unique_ptr<ManualStream> CreateComputeStream(const std::string& name) {
    return std::make_unique<ManualStream>(this, name);
  }

  // How many copies came together, each time on any lane, as "out/peer 3".
  const std::vector<std::string>& batches() const { return batches_; }
  // The next CopyAll fails with `status`.
  void FailNextCopyAll(absl::Status status) { next_copy_all_ = std::move(status); }

  // One step of some lane. False: nobody can move.
  bool Step();
  // Steps until `event` is done, or fails the test when nobody can move: a deadlock.
  void StepUntilDone(const Event& event);
  void StepUntilIdle();
  int64_t steps() const { return steps_; }

  const DeviceDescription& description() const override { return description_; }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(Bytes bytes) override;
  absl::StatusOr<std::unique_ptr<Memory>> Map(int descriptor, Bytes bytes) override;
  absl::StatusOr<std::unique_ptr<Memory>> Adopt(int descriptor, Bytes bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(Direction direction, Tier tier) override;
  absl::StatusOr<std::shared_ptr<const Event>> RecordCompute(void* compute_stream) override;
  absl::Status ComputeWait(void* compute_stream, const Event& event) override;
  bool compute_wait_blocks() const override { return compute_mode_ == Compute::kBlocking; }
  Bytes free_bytes() const override { return 0; }

 private:
  friend class ManualStream;

  ManualStream* ComputeStream(void* compute_stream) {
    return compute_stream == nullptr ? compute() : static_cast<ManualStream*>(compute_stream);
  }

  const Compute compute_mode_;
  FakeClock* const clock_;
  const DeviceDescription description_;
  std::vector<ManualStream*> streams_;
  std::string preferred_;
  bool shuffle_ = false;
  std::mt19937_64 random_;
  int64_t steps_ = 0;
  std::vector<std::string> batches_;
  absl::Status next_copy_all_;
  std::unique_ptr<ManualStream> compute_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_MANUAL_DEVICE_H_
