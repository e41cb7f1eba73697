// Moves jobs on: level-triggered, on one thread, from what the book and the registry say now.
// Nothing it needs is in its memory alone, so a new coordinator goes on where a killed one stood.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_RECONCILER_H_
#define HYPERFRAMES_COORDINATOR_JOBS_RECONCILER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/jobs/admission.h"
#include "coordinator/jobs/agent_client.h"
#include "coordinator/jobs/job_book.h"
#include "coordinator/membership/node_registry.h"

namespace hyperframes {

class Reconciler {
 public:
  struct Options {
    int64_t epoch = 0;
    std::string coordinator_address;                    // Handed to workers.
    absl::Duration interval = absl::Milliseconds(500);  // Between passes when nothing happens.
    absl::Duration start_timeout = absl::Minutes(5);    // STARTING for longer: FAILED.
    absl::Duration retry_after = absl::Seconds(1);      // Before a failed agent is asked again.
    absl::Duration stop_again_after = absl::Seconds(5);
    absl::Duration restart_pause = absl::Seconds(1);  // Doubled with every restart of the job.
    absl::Duration longest_restart_pause = absl::Minutes(1);
    absl::Duration gang_patience = absl::Minutes(10);   // See AdmitQueue.
    absl::Duration lost_node_after = absl::Minutes(5);  // OFFLINE for longer: its workers are lost.
  };

  // Everything must outlive the reconciler.
  Reconciler(Options options, JobBook* book, const NodeRegistry* registry, AgentClient* agents,
             const Clock* clock);
  ~Reconciler();

  // Handed to workers. Set before Start.
  void set_coordinator_address(std::string address) { coordinator_address_ = std::move(address); }
  // Also run on every pass, after the jobs. Set before Start.
  void set_also(std::function<void()> also) { also_ = std::move(also); }
  // Tells how many leases a job holds on nodes that can be asked: none may be left before it is
  // restarted. Set before Start.
  void set_leases_held(std::function<int(const std::string& job)> leases_held) {
    leases_held_ = std::move(leases_held);
  }
  void Start();
  // Ends the thread, after the agent call under way. Idempotent.
  void Stop();
  // Makes the next pass happen soon. Cheap; any thread, any lock but the reconciler's own.
  void Wake();

  // The node has been OFFLINE for lost_node_after. Any thread.
  bool IsLost(const std::string& node) const;

  // One pass. By the thread, or by a test that did not Start.
  void RunOnce();

 private:
  void Loop();
  void AdmitQueued(const std::vector<JobBook::Record>& active);
  // Workers on lost nodes count as ended. A node that comes back is told to stop them.
  void GiveUpLostWorkers(const JobBook::Record& job);
  void Advance(const JobBook::Record& job);
  void Begin(const JobBook::Record& job);
  void StartWorkers(const JobBook::Record& job);
  void Judge(const JobBook::Record& job);
  void StopWorkers(const JobBook::Record& job);
  // What is waited for, or "" when no rank need be waited for any more.
  std::string StopRanks(const v1::JobRecord& job);
  void FailOrRestart(const v1::JobRecord& job, const v1::JobWorkerRecord& failed);
  void Restart(const JobBook::Record& before);
  std::string NotYetGone(const v1::JobRecord& job) const;
  absl::Duration Pause(int restarts) const;
  absl::Status StopOne(const v1::JobRecord& job, const v1::JobWorkerRecord& worker);
  // Writes what an agent answered about one worker.
  void Record(const std::string& job, const std::string& worker, const v1::WorkerReport& report);
  void Fail(const std::string& job, const std::string& reason, const std::string& message);
  // Stops the job's workers on the way to `final_state`.
  void End(const std::string& job, v1::JobState final_state, const std::string& reason,
           const std::string& message);
  // True when the job was ended for its time limit.
  bool EndOverdue(const v1::JobRecord& job);
  // The node's agent, when it can be asked now.
  absl::StatusOr<std::string> Address(const std::string& node) const;
  bool Unreachable(const std::string& node) const;
  // True (and remembered) when the status says to ask this node again later.
  bool Later(const std::string& node, const absl::Status& status);
  v1::StartWorkerRequest StartRequest(const v1::JobRecord& job,
                                      const v1::JobWorkerRecord& worker) const;

  const Options options_;
  JobBook* const book_;
  const NodeRegistry* const registry_;
  AgentClient* const agents_;
  const Clock* const clock_;
  const absl::Time born_;
  std::string coordinator_address_;
  std::function<void()> also_;
  std::function<int(const std::string& job)> leases_held_;
  // Of the pass alone: when a node may be asked again, when a worker was last told to stop.
  std::map<std::string, absl::Time> not_before_;
  std::map<std::string, absl::Time> stop_sent_;

  Mutex mutex_;
  CondVar woken_;
  bool wake_ HF_GUARDED_BY(mutex_) = false;
  bool stop_ HF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// For agents to register with a coordinator that has just started.
constexpr absl::Duration kTimeToComeBack = absl::Seconds(30);

// A new attempt of the job, one worker a seat.
void SeatWorkers(const std::vector<Seat>& seats, v1::JobRecord* record);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_RECONCILER_H_
