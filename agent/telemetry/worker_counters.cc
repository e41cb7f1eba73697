#include "agent/telemetry/worker_counters.h"

#include <utility>

#include "common/status_macros.h"

namespace hyperframes {

absl::Status WorkerCounters::Attach(const std::string& worker_id, const std::string& gpu,
                                    UniqueFd page) {
  HF_ASSIGN_OR_RETURN(const CountersReading reading, ReadCounters(page.get()));
  MutexLock lock(&mutex_);
  if (pages_.size() >= most_pages_ && pages_.count(worker_id) == 0) {
    return absl::ResourceExhaustedError("too many counters pages on this node");
  }
  Page& kept = pages_[worker_id];
  kept.gpu = gpu;
  kept.descriptor = std::move(page);
  kept.last = reading;
  return absl::OkStatus();
}

void WorkerCounters::Detach(const std::string& worker_id) {
  MutexLock lock(&mutex_);
  const auto found = pages_.find(worker_id);
  if (found == pages_.end()) return;
  CountersReading totals = Read(found->second);
  if (last_of_ended_.size() >= most_pages_) last_of_ended_.erase(last_of_ended_.begin());
  last_of_ended_[worker_id] = totals;
  totals.DropGauges();
  ended_[found->second.gpu].Add(totals);
  pages_.erase(found);
}

const CountersReading& WorkerCounters::Read(const Page& page) const {
  absl::StatusOr<CountersReading> reading = ReadCounters(page.descriptor.get());
  if (reading.ok()) page.last = *reading;
  return page.last;
}

std::map<std::string, CountersReading> WorkerCounters::ByGpu() const {
  MutexLock lock(&mutex_);
  std::map<std::string, CountersReading> sums = ended_;
  for (const auto& [worker_id, page] : pages_) sums[page.gpu].Add(Read(page));
  return sums;
}

CountersReading WorkerCounters::Of(const std::string& worker_id) const {
  MutexLock lock(&mutex_);
  const auto found = pages_.find(worker_id);
  if (found != pages_.end()) return Read(found->second);
  const auto ended = last_of_ended_.find(worker_id);
  return ended == last_of_ended_.end() ? CountersReading() : ended->second;
}

void WorkerCounters::Forget(const std::string& worker_id) {
  MutexLock lock(&mutex_);
  last_of_ended_.erase(worker_id);
}

}  // namespace hyperframes
