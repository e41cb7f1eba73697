// Room: agent/engine. Lives in the training process and moves storages between the GPU that
// computes and the arenas that the plan gave it: put, fetch, drop, by handle. It knows devices and
// arenas; it must not know plans, gRPC, Python or torch.
//
// Life of a storage:   Put -> (copy-out) -> source released -> Fetch -> (reload) -> Wait -> Drop
//
// What the engine guarantees, whatever the timing:
//  * a reload starts after its own copy-out has finished;
//  * a slot is written again only after every reload from it has finished;
//  * a source is reported releasable only once its copy-out has finished (host) or once the compute
//    stream has been made to wait for it (CUDA), in Put order, so that the peak does not depend on
//    timing;
//  * the consumer runs after the reload (Wait);
//  * a handle that was not dropped stays fetchable, any number of times (retain_graph);
//  * small storages that come one after the other travel together: a copy-out that waits for
//  company
//    is started by the next put that does not join it, and before anything waits for it;
//  * what does not fit its lease goes to HOST, else stays KEEP, and is counted: never silently.
#ifndef HYPERFRAMES_AGENT_ENGINE_FRAME_ENGINE_H_
#define HYPERFRAMES_AGENT_ENGINE_FRAME_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/device.h"
#include "agent/engine/frame_engine_options.h"
#include "common/frame.h"
#include "common/units.h"

namespace hyperframes {

// Never reused in the life of an engine. 0 is no handle.
using StorageHandle = uint64_t;

// Bytes that the engine may place storages in. The lease behind it belongs to somebody else.
struct EngineArena {
  std::string lease_id;  // For messages and metrics.
  Tier tier = Tier::kHost;
  std::string gpu;  // UUID of the lender; empty for host memory.
  std::unique_ptr<Memory> memory;
};

// Which storage of the step this is. The learned order of consumption is a sequence of keys.
struct StorageKey {
  int32_t micro_batch = 0;  // Ordinal of the forward pass since the last quiescent point.
  int32_t block = 0;        // Index in the plan; -1 for storages outside every block.
  int32_t ordinal = 0;      // Order in which the block saved it.
};

// Where a Put really went.
struct Placement {
  StorageHandle handle =
      0;  // 0 when placed == kKeep: the caller keeps the source and owes nothing.
  Tier placed = Tier::kKeep;
  const char* overflow_reason = "";  // Empty when the plan was followed. A literal, bounded set.
};

// Monotonic counters since creation, except the gauges. Bytes, or counts, or seconds as named.
struct EngineStats {
  Bytes bytes_out[kTierCount] = {};
  Bytes bytes_in[kTierCount] = {};
  int64_t puts[kTierCount] = {};
  int64_t fetches[kTierCount] = {};
  int64_t overflow_to_host = 0;
  int64_t overflow_to_keep = 0;
  int64_t prefetch_hits = 0;    // Waits whose reload had been started by prefetch.
  int64_t prefetch_misses = 0;  // Waits that had to start it.
  // Time for which the compute stream stood still for a copy. On CUDA zero, like copy_busy, unless
  // the device was opened to measure.
  absl::Duration exposed_wait;
  absl::Duration copy_busy[kDirectionCount][kTierCount] = {};
  Bytes stash_bytes = 0;                  // Gauge: sources held for copy-outs.
  Bytes reload_bytes = 0;                 // Gauge: reload buffers between Fetch and Drop.
  Bytes arena_used[kTierCount] = {};      // Gauge.
  Bytes arena_capacity[kTierCount] = {};  // Gauge.
  int64_t live_storages = 0;              // Gauge: handles not yet dropped.
};

// Thread-safe: forward and backward may run on different threads.
class FrameEngine {
 public:
  // `device` outlives the engine. InvalidArgument: limits below zero, an arena with tier KEEP or
  // without memory, a longest_delay below zero.
  static absl::StatusOr<std::unique_ptr<FrameEngine>> Create(Device* device,
                                                             std::vector<EngineArena> arenas,
                                                             FrameEngineOptions options);
  virtual ~FrameEngine() = default;  // Waits for copies under way.

  // Starts the copy-out of `bytes` at `source` into `tier` (on `gpu` for kPeer; empty: any peer
  // arena). Waits, if it must, until the stash is within its limit. The source stays valid until
  // TakeReleasable returns the handle. `compute_stream` produced the source; it lives to the next
  // quiescent point, and names one stream whatever thread asks. `preferred_offset` is the plan's
  // slot in the arena, or -1. InvalidArgument: bytes <= 0 or a null source. Unavailable: the arena
  // is on another node, which is lost.
  virtual absl::StatusOr<Placement> Put(const StorageKey& key, const void* source, Bytes bytes,
                                        Tier tier, const std::string& gpu, Bytes preferred_offset,
                                        void* compute_stream) = 0;

  // Handles whose sources may be dropped now, in Put order. With `limit` >= 0 it first waits, as
  // Put does, until at most `limit` bytes of sources are held. Each handle is returned once.
  virtual std::vector<StorageHandle> TakeReleasable(Bytes limit, void* compute_stream) = 0;

  // Starts a reload into `destination` (as many bytes as were put). The destination stays valid
  // until Drop or until a Wait for it has returned and its consumer is done. A handle may be
  // fetched again. NotFound: a handle that was dropped or never given.
  virtual absl::Status Fetch(StorageHandle handle, void* destination, bool is_prefetch,
                             void* compute_stream) = 0;

  // Orders the consumer on `compute_stream` after the last Fetch of `handle`, and records
  // consumption for the learned order. FailedPrecondition: no Fetch. DataLoss: verify found other
  // bytes. Unavailable: they were on another node, which is lost; names the storage and the node.
  // Blocks, on every backend, until bytes of another node have come.
  virtual absl::Status Wait(StorageHandle handle, void* compute_stream) = 0;

  // What should be reloaded next, most urgent first, within prefetch_limit: the caller allocates a
  // buffer for each and calls Fetch(is_prefetch = true). Follows the order in which the last
  // complete step consumed its storages; before one is known, reverse Put order. A bounded number
  // of them: reloads of small ones start together, with that of the last one named, or when one is
  // waited for.
  virtual std::vector<StorageHandle> NextToPrefetch() = 0;

  // Gives the slot back once reloads from it are done. Unknown handles are ignored: destructors
  // call it.
  virtual void Drop(StorageHandle handle) = 0;

  // Another plan holds from now on, with these limits in place of the options'. InvalidArgument:
  // below 0.
  virtual absl::Status SetLimits(Bytes stash_limit, Bytes prefetch_limit) = 0;

  // A quiescent point: the order of consumption just seen becomes the learned one.
  // FailedPrecondition names how many storages are still live (nothing changes then).
  virtual absl::Status Quiesce() = 0;

  virtual EngineStats stats() const = 0;
  // Bytes of a live storage; 0 when unknown.
  virtual Bytes SizeOf(StorageHandle handle) const = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_FRAME_ENGINE_H_
