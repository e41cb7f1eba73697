// What the chaos tests run: a program that moves frames through an engine and reuses memory as soon
// as it may, so that an event which is missing somewhere shows as wrong bytes.
#ifndef HYPERFRAMES_AGENT_ENGINE_CHAOS_PROGRAM_H_
#define HYPERFRAMES_AGENT_ENGINE_CHAOS_PROGRAM_H_

#include <deque>
#include <memory>
#include <vector>

#include "agent/device/conformance_backends.h"
#include "agent/engine/frame_engine.h"

// Where the fault that a chaos test plants, a data race, would be reported by itself.
#if defined(__SANITIZE_THREAD__)
#define HF_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HF_TSAN 1
#endif
#endif

namespace hyperframes {

// Puts, fetches, compares and drops, in the order that it is told; sources are overwritten on
// release. Not thread-safe. The backend outlives it. A call that the engine refuses fails the test.
class ChaosProgram {
 public:
  // Moves storages of up to `largest` bytes into `arenas`, leases that backend->compute() can use.
  ChaosProgram(ConformanceBackend* backend, std::vector<EngineArena> arenas,
               const FrameEngineOptions& options, Bytes largest);

  // Fills a source of 1 to `largest` bytes and puts it.
  void Put(Tier tier, Bytes bytes);
  // Overwrites every source that may be dropped now, as the next kernel would. `limit`: bytes that
  // may stay in the stash.
  void Release(Bytes limit);
  // Fetches the live storage of that index, oldest first, compares and drops it.
  void Consume(size_t index);
  // Fetches ahead what the engine names, as the front does; then compares and drops those.
  void ConsumeAhead();

  // Storages that were put, moved, and not consumed yet.
  size_t live() const { return live_.size(); }
  // Puts that did not stay where they were.
  int64_t moved() const { return moved_; }
  // Storages that came back with other bytes.
  int64_t wrong_storages() const { return wrong_storages_; }

 private:
  struct Live {
    StorageHandle handle;
    char value;
    Bytes bytes;
  };

  // Waits for the reload into `back`, compares and drops.
  void Finish(const Live& storage, char* back);

  // Buffers of the program on its GPU, handed out in a circle: one is used again only long after it
  // was given up, so that a copy which is still reading finds wrong bytes of ours and nobody
  // else's.
  class Buffers {
   public:
    Buffers(ConformanceBackend* backend, Bytes bytes)
        : backend_(backend),
          bytes_(bytes),
          memory_(backend->Borrow(backend->compute(), kCount * bytes)) {}
    // Behind what the program has queued to do with them.
    ~Buffers() {
      if (memory_ != nullptr) backend_->ReadOnCompute(memory_->data(), 1);
    }
    char* Next() { return memory_->data() + (next_++ % kCount) * bytes_; }

   private:
    static constexpr Bytes kCount = 256;
    ConformanceBackend* const backend_;
    const Bytes bytes_;
    const std::unique_ptr<Memory> memory_;
    Bytes next_ = 0;
  };

  ConformanceBackend* const backend_;
  const Bytes largest_;
  Buffers sources_memory_;
  Buffers reloads_memory_;
  std::vector<Live> live_;
  std::deque<char*> sources_;
  int64_t puts_ = 0;
  int64_t moved_ = 0;
  int64_t wrong_storages_ = 0;
  std::unique_ptr<FrameEngine> engine_;  // Last: drained before the buffers go.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_CHAOS_PROGRAM_H_
