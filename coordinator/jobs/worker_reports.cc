#include "coordinator/jobs/worker_reports.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/jobs/failures.h"
#include "coordinator/jobs/job_state.h"

namespace hyperframes {
namespace {

// Index of the worker in the record's list, or -1: of an earlier attempt, or nobody's.
int FindWorker(const v1::JobRecord& record, const std::string& worker_id) {
  for (int i = 0; i < record.workers_size(); ++i) {
    if (record.workers(i).worker_id() == worker_id) return i;
  }
  return -1;
}

}  // namespace

void MergeReport(const v1::WorkerReport& report, absl::Time wall_now, v1::JobWorkerRecord* worker) {
  v1::WorkerReport* known = worker->mutable_report();
  if (known->state() == v1::WORKER_STATE_EXITED) return;
  if (known->state() == report.state() && known->pid() == report.pid() &&
      known->adopted() == report.adopted() && known->message() == report.message()) {
    return;
  }
  *known = report;
  known->clear_age_s();
  known->clear_ended_ago_s();
  if (report.state() != v1::WORKER_STATE_EXITED) {
    known->clear_activation_bytes();
    known->clear_activation_peak_bytes();
    known->clear_steps();
  }
  if (known->message().size() > 512) known->mutable_message()->resize(512);
  if (report.state() != v1::WORKER_STATE_EXITED) return;
  worker->set_released(true);
  worker->set_ended_unix_s(absl::ToDoubleSeconds(wall_now - absl::UnixEpoch()) -
                           std::max(0.0, report.ended_ago_s()));
}

absl::StatusOr<std::vector<std::string>> WorkerReports::ApplyList(
    const std::string& node, const std::vector<v1::WorkerReport>& workers) {
  const absl::Time now = book_->wall_now();
  std::vector<std::string> unwanted;
  std::map<std::string, std::vector<const v1::WorkerReport*>> by_job;
  std::set<std::string> reported;
  for (const v1::WorkerReport& worker : workers) {
    by_job[worker.job_id()].push_back(&worker);
    reported.insert(worker.worker_id());
  }
  for (const auto& named : by_job) {
    const absl::StatusOr<JobBook::Record> job = book_->Get(named.first);
    if (!job.ok() && !absl::IsNotFound(job.status())) return job.status();
    for (const v1::WorkerReport* worker : named.second) {
      const int at = job.ok() ? FindWorker(**job, worker->worker_id()) : -1;
      // One that was given up with its node is not wanted back: its job goes on without it.
      const bool wanted = at >= 0 && !IsFinalJobState((*job)->state()) &&
                          (*job)->workers(at).report().state() != v1::WORKER_STATE_EXITED;
      if (!wanted && worker->state() != v1::WORKER_STATE_EXITED) {
        unwanted.push_back(worker->worker_id());
      }
    }
    if (!job.ok()) continue;
    HF_RETURN_IF_ERROR(book_
                           ->Update(named.first,
                                    [&](v1::JobRecord* record) {
                                      for (const v1::WorkerReport* worker : named.second) {
                                        const int at = FindWorker(*record, worker->worker_id());
                                        if (at >= 0 && record->workers(at).node() == node) {
                                          MergeReport(*worker, now, record->mutable_workers(at));
                                        }
                                      }
                                      return absl::OkStatus();
                                    })
                           .status());
  }
  HF_RETURN_IF_ERROR(MarkMissing(node, reported));
  return unwanted;
}

std::vector<std::string> WorkerReports::UnfinishedJobs(const std::string& node) const {
  std::vector<std::string> ids;
  for (const JobBook::Record& job : book_->Active()) {
    if (IsFinalJobState(job->state())) continue;
    bool here = std::any_of(job->workers().begin(), job->workers().end(),
                            [&](const auto& worker) { return worker.node() == node; });
    for (const v1::JobAttemptRecord& earlier : job->attempts()) {
      here = here || std::any_of(earlier.runs().begin(), earlier.runs().end(),
                                 [&](const auto& run) { return run.node() == node; });
    }
    if (here) ids.push_back(job->id());
  }
  return ids;
}

absl::Status WorkerReports::MarkMissing(const std::string& node,
                                        const std::set<std::string>& reported) {
  std::map<std::string, std::set<std::string>> lost;  // Worker ids by job.
  {
    MutexLock lock(&mutex_);
    for (const std::string& id : reported) missing_.erase(id);
    for (const JobBook::Record& job : book_->Active()) {
      for (const v1::JobWorkerRecord& worker : job->workers()) {
        // Of a job that ended without its node, nobody knows whether the worker was started.
        const bool started = worker.report().state() != v1::WORKER_STATE_UNSPECIFIED ||
                             IsFinalJobState(job->state());
        if (worker.node() != node || worker.released() || !started ||
            reported.count(worker.worker_id()) > 0) {
          continue;
        }
        if (!missing_.insert(worker.worker_id()).second) lost[job->id()].insert(worker.worker_id());
      }
    }
  }
  for (const auto& named : lost) {
    HF_RETURN_IF_ERROR(book_
                           ->Update(named.first,
                                    [&](v1::JobRecord* record) {
                                      for (auto& worker : *record->mutable_workers()) {
                                        if (named.second.count(worker.worker_id()) == 0) continue;
                                        v1::WorkerReport gone = worker.report();
                                        gone.set_state(v1::WORKER_STATE_EXITED);
                                        gone.set_exit_code(-1);
                                        gone.set_message(kLostWorker);
                                        MergeReport(gone, book_->wall_now(), &worker);
                                      }
                                      return absl::OkStatus();
                                    })
                           .status());
    MutexLock lock(&mutex_);
    for (const std::string& id : named.second) missing_.erase(id);
  }
  return absl::OkStatus();
}

}  // namespace hyperframes
