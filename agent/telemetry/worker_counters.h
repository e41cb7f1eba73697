// The counters pages of this node's workers, and what ended workers had counted.
#ifndef HYPERFRAMES_AGENT_TELEMETRY_WORKER_COUNTERS_H_
#define HYPERFRAMES_AGENT_TELEMETRY_WORKER_COUNTERS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "agent/telemetry/counters_reader.h"
#include "common/mutex.h"
#include "common/unique_fd.h"

namespace hyperframes {

// Thread-safe. Sums by GPU, so that series stay bounded by the hardware however many workers come
// and go, and totals never fall when a worker ends.
class WorkerCounters {
 public:
  explicit WorkerCounters(size_t most_pages = 1024) : most_pages_(most_pages) {}

  // A worker shares its page again after every reconnection: the last one counts. Statuses as
  // ReadCounters; ResourceExhausted: too many pages.
  absl::Status Attach(const std::string& worker_id, const std::string& gpu, UniqueFd page)
      HF_EXCLUDES(mutex_);
  // Its worker has ended. Folds its totals into its GPU's. Unknown workers are ignored.
  void Detach(const std::string& worker_id) HF_EXCLUDES(mutex_);

  // By GPU uuid: what lives, and what was.
  std::map<std::string, CountersReading> ByGpu() const HF_EXCLUDES(mutex_);
  // What it shows now; after its end the last that it showed, until Forget. Zeros when it has
  // shared none.
  CountersReading Of(const std::string& worker_id) const HF_EXCLUDES(mutex_);
  // The end has been reported.
  void Forget(const std::string& worker_id) HF_EXCLUDES(mutex_);

 private:
  struct Page {
    std::string gpu;
    UniqueFd descriptor;
    // The last reading that was good: a page that its worker spoils later changes nothing.
    mutable CountersReading last;
  };
  const CountersReading& Read(const Page& page) const HF_REQUIRES(mutex_);

  const size_t most_pages_;
  mutable Mutex mutex_;
  std::map<std::string, Page> pages_ HF_GUARDED_BY(mutex_);
  std::map<std::string, CountersReading> ended_ HF_GUARDED_BY(mutex_);  // By GPU.
  std::map<std::string, CountersReading> last_of_ended_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TELEMETRY_WORKER_COUNTERS_H_
