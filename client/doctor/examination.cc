#include "client/doctor/examination.h"

#include <thread>
#include <utility>

#include "client/doctor/collective_facts.h"
#include "client/doctor/host_facts.h"
#include "client/doctor/nvml_facts.h"
#include "client/doctor/path_facts.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace doctor {
namespace {

// Shared with a thread that may never come back.
struct Progress {
  Mutex mutex;
  CondVar changed;
  Facts facts HF_GUARDED_BY(mutex);
  std::string asking HF_GUARDED_BY(mutex);
  bool done HF_GUARDED_BY(mutex) = false;
};

void Ask(const std::vector<std::unique_ptr<FactSource>>& sources, absl::Time deadline,
         Progress* progress) {
  Facts facts;
  for (const auto& source : sources) {
    {
      MutexLock lock(&progress->mutex);
      progress->asking = source->name();
    }
    source->Collect(deadline, &facts);
    MutexLock lock(&progress->mutex);
    progress->facts = facts;
  }
  MutexLock lock(&progress->mutex);
  progress->done = true;
  progress->changed.NotifyAll();
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<FactSource>>> SourcesHere(
    const std::string& host_devices, std::vector<std::string> collectives) {
  std::vector<std::unique_ptr<FactSource>> sources;
  sources.push_back(std::make_unique<HostFactSource>());
  if (host_devices.empty()) {
    const bool measures = !collectives.empty();
    sources.push_back(std::make_unique<CudaPathSource>(
        MonotonicClock(), measures ? kCollectivesTime : absl::ZeroDuration()));
    if (measures) {
      sources.push_back(
          std::make_unique<CollectiveSource>(std::move(collectives), MonotonicClock()));
    }
    sources.push_back(std::make_unique<NvmlFactSource>());
    return sources;
  }
  HostMachineOptions options;
  HF_ASSIGN_OR_RETURN(options.devices, ParseHostDevices(host_devices));
  HF_ASSIGN_OR_RETURN(std::unique_ptr<HostMachine> machine,
                      HostMachine::Create(std::move(options)));
  sources.push_back(std::make_unique<SimulatedPathSource>(std::move(machine), MonotonicClock()));
  return sources;
}

Facts Examine(std::vector<std::unique_ptr<FactSource>> sources, absl::Duration time,
              absl::Duration patience) {
  const absl::Time started = MonotonicClock()->Now();
  const absl::Time deadline = started + time;
  const auto progress = std::make_shared<Progress>();
  std::thread thread([sources = std::move(sources), deadline, progress] {
    Ask(sources, deadline, progress.get());
  });
  Facts facts;
  {
    MutexLock lock(&progress->mutex);
    const bool done = progress->changed.WaitFor(&progress->mutex, time + patience, [&progress] {
      progress->mutex.AssertHeld();
      return progress->done;
    });
    facts = progress->facts;
    facts.answered = done;
    if (!done) facts.stuck = progress->asking;
  }
  if (facts.answered) {
    thread.join();
  } else {
    thread.detach();
  }
  facts.elapsed = MonotonicClock()->Now() - started;
  return facts;
}

}  // namespace doctor
}  // namespace hyperframes
