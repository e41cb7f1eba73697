// One frame engine with the leases behind it: memory of this process, or mapped from agents.
#ifndef HYPERFRAMES_CLIENT_C_ENGINE_H_
#define HYPERFRAMES_CLIENT_C_ENGINE_H_

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/engine/frame_engine.h"
#include "agent/transfer/transfer_channel.h"
#include "client/c/engine_options.h"
#include "client/c/machine.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace hyperframes {

// Thread-safe, like the FrameEngine inside.
class Engine {
 public:
  // See hf_engine_open. InvalidArgument names the option; NotFound: the GPU, a lender or a lease is
  // not there; ResourceExhausted: a lender has not that many bytes; PermissionDenied: a wrong
  // token; Unavailable: the agent does not answer. Nothing is kept when it fails.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(std::shared_ptr<Machine> machine,
                                                      const std::string& options_json);
  // Waits for copies under way, unmaps, and returns leases to their agents.
  ~Engine();

  FrameEngine* frames() { return frames_.get(); }
  Machine* machine() { return machine_.get(); }

  // Into the counters page, at once.
  void Publish();
  // The same, when the last one is kPublishInterval old. Cheap enough for every put.
  void PublishSometimes();

  // FrameEngine::TakeReleasable, at most `capacity` of them; the rest waits for the next call.
  std::vector<StorageHandle> TakeReleasable(Bytes limit, void* compute_stream, int64_t capacity)
      HF_EXCLUDES(mutex_);

  // True when an agent wants a lease back.
  bool TakeRevocation(std::string* lease_id);

 private:
  struct AgentLease {
    DescriptorClient* agent;  // Owned by the machine.
    std::string lease_id;
  };

  explicit Engine(std::shared_ptr<Machine> machine) : machine_(std::move(machine)) {}
  absl::Status Start(const EngineOptions& options);
  absl::StatusOr<EngineArena> OpenArena(Device* device, const LeaseOptions& lease);
  absl::StatusOr<std::unique_ptr<Memory>> MapLease(Device* device, const LeaseOptions& lease);
  // A lease on another node, through a hftransfer that this engine's agent starts for it.
  absl::StatusOr<std::unique_ptr<Memory>> OpenRemote(Device* device, const LeaseOptions& lease);

  const std::shared_ptr<Machine> machine_;
  const Clock* const clock_ = MonotonicClock();
  std::vector<AgentLease> agent_leases_;
  std::shared_ptr<TransferChannel> transfer_;  // Null until a lease is on another node.
  std::unique_ptr<FrameEngine> frames_;
  std::atomic<int64_t> next_publish_ns_{0};
  Mutex mutex_;
  std::deque<StorageHandle> releasable_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

// The handle of the C ABI.
struct hf_engine {
  std::unique_ptr<hyperframes::Engine> engine;
};

#endif  // HYPERFRAMES_CLIENT_C_ENGINE_H_
