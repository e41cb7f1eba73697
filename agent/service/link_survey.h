// What an agent knows of its links. Simulated ones are measured here; those of real GPUs by a
// process that makes the contexts for it and ends (hfprobe), in the background: an agent makes
// none, and is ready before. What was measured once is kept in the run directory: an agent that is
// started again beside running workers neither waits nor disturbs them.
#ifndef HYPERFRAMES_AGENT_SERVICE_LINK_SURVEY_H_
#define HYPERFRAMES_AGENT_SERVICE_LINK_SURVEY_H_

#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/gpu_machine.h"
#include "agent/service/link_report.h"
#include "common/mutex.h"

namespace hyperframes {

struct LinkSurveyOptions {
  std::string node;
  std::string probe_path;                       // The hfprobe binary.
  std::string kept_path;                        // Where measurements are kept; empty: nowhere.
  absl::Duration deadline = absl::Seconds(60);  // Of the process; then it is killed.
};

// Thread-safe.
class LinkSurvey {
 public:
  // Starts at once. `machine` outlives it. `measured` is called from a thread of the survey's once
  // the background has the report; where the constructor already had it, never.
  LinkSurvey(LinkSurveyOptions options, const GpuMachine* machine,
             std::function<void(const LinkReport&)> measured);
  // Ends a measurement under way.
  ~LinkSurvey();

  // Empty until measured.
  LinkReport report() const HF_EXCLUDES(mutex_);
  // False while a measurement is under way.
  bool done() const HF_EXCLUDES(mutex_);

 private:
  void Run();
  LinkReport Probe();
  // What an earlier agent measured since this machine was started, of the very same paths.
  absl::StatusOr<LinkReport> ReadKept() const;
  void Keep(const LinkReport& report) const;
  std::string Key() const;
  void Settle(LinkReport report) HF_EXCLUDES(mutex_);

  const LinkSurveyOptions options_;
  const GpuMachine* const machine_;
  const std::function<void(const LinkReport&)> measured_;
  const int stop_;  // An eventfd: readable once the survey ends.
  mutable Mutex mutex_;
  LinkReport report_ HF_GUARDED_BY(mutex_);
  bool done_ HF_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_LINK_SURVEY_H_
