// The reconciler's way from a failed rank to the next attempt.
#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/attempts.h"
#include "coordinator/jobs/failures.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/reconciler.h"

namespace hyperframes {
namespace {

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

std::string CauseOf(const v1::JobRecord& job) {
  const v1::JobWorkerRecord* first = FirstFailed(job);
  return first == nullptr ? job.reason() : FailureText(job, *first);
}

}  // namespace

void SeatWorkers(const std::vector<Seat>& seats, v1::JobRecord* record) {
  record->set_attempt(record->attempt() + 1);
  record->clear_workers();
  for (size_t rank = 0; rank < seats.size(); ++rank) {
    v1::JobWorkerRecord* worker = record->add_workers();
    worker->set_rank(static_cast<int32_t>(rank));
    worker->set_node(seats[rank].node);
    worker->set_gpu(seats[rank].gpu);
    worker->set_local_rank(seats[rank].local_rank);
    worker->set_local_world_size(seats[rank].local_world_size);
    worker->set_worker_id(absl::StrCat(record->id(), "-", record->attempt(), "-", rank));
  }
}

absl::Duration Reconciler::Pause(int restarts) const {
  absl::Duration pause = options_.restart_pause;
  for (int i = 0; i < restarts && pause < options_.longest_restart_pause; ++i) pause *= 2;
  return std::min(pause, options_.longest_restart_pause);
}

void Reconciler::FailOrRestart(const v1::JobRecord& job, const v1::JobWorkerRecord& failed) {
  if (!MayRestart(job)) {
    return Fail(job.id(), FailureReason(failed), FailureText(job, failed));
  }
  const auto updated = book_->Update(job.id(), [&](v1::JobRecord* record) {
    // Cancelled since the look.
    if (!RanksRun(record->state()) && record->state() != v1::JOB_STATE_STARTING) {
      return absl::OkStatus();
    }
    record->set_state(v1::JOB_STATE_RESTARTING);
    record->set_reason(FailureReason(failed));
    record->set_message(FailureText(*record, failed));
    record->set_restart_at_unix_s(UnixSeconds(book_->wall_now() + Pause(record->restarts())));
    return absl::OkStatus();
  });
  if (!updated.ok()) LOG(WARNING) << job.id() << ": " << updated.status();
}

void Reconciler::Restart(const JobBook::Record& before) {
  if (EndOverdue(*before)) return;
  std::string waiting = StopRanks(*before);
  const absl::StatusOr<JobBook::Record> found = book_->Get(before->id());
  if (!found.ok() || (*found)->state() != v1::JOB_STATE_RESTARTING) return;
  const v1::JobRecord& job = **found;
  const std::string cause = CauseOf(job);
  if (waiting.empty()) waiting = NotYetGone(job);
  if (!waiting.empty()) {
    return book_->Explain(job.id(), job.reason(), absl::StrCat(cause, "; ", waiting));
  }
  // All that its ranks had to tell is told now.
  if (!MayRestart(job)) return Fail(job.id(), FailureReason(*FirstFailed(job)), cause);
  const bool stepless = EndedWithoutStep(job);
  if (stepless && job.stepless_attempts() > 0) {
    return End(job.id(), v1::JOB_STATE_NO_PROGRESS, "no_progress",
               absl::StrCat(job.stepless_attempts() + 1,
                            " attempts in a row ended without a step; the last: ", cause));
  }
  const double pause_s = job.restart_at_unix_s() - UnixSeconds(book_->wall_now());
  // A longer one than there is: the wall clock was set back.
  if (pause_s > 0 && pause_s <= absl::ToDoubleSeconds(options_.longest_restart_pause)) {
    return book_->Explain(job.id(), job.reason(),
                          absl::StrCat(cause, "; is restarted after a pause"));
  }
  ClusterView view = ViewCluster(registry_->List(), book_->Active(), job.id());
  const Verdict verdict = Admit(job, &view);
  if (!verdict.admitted) return book_->Explain(job.id(), verdict.reason, verdict.message);
  const auto updated = book_->Update(job.id(), [&](v1::JobRecord* record) {
    if (record->state() != v1::JOB_STATE_RESTARTING) return absl::OkStatus();
    record->set_state(v1::JOB_STATE_ADMITTED);
    record->set_restarts(record->restarts() + 1);
    record->set_reason("restarted");
    record->set_message(absl::StrCat("restart ", record->restarts(), " of at most ",
                                     record->spec().max_restarts(), ", after ", cause));
    KeepAttempt(FirstFailed(*record) == nullptr ? "" : FailureReason(*FirstFailed(*record)), cause,
                book_->wall_now(), record);
    record->set_stepless_attempts(stepless ? record->stepless_attempts() + 1 : 0);
    record->clear_restart_at_unix_s();
    SeatWorkers(verdict.seats, record);
    return absl::OkStatus();
  });
  if (!updated.ok()) LOG(WARNING) << job.id() << ": " << updated.status();
}

bool Reconciler::IsLost(const std::string& node) const {
  const absl::StatusOr<Node> found = registry_->Find(node);
  if (!found.ok()) {
    // Not registered since this coordinator started.
    return clock_->Now() - born_ >= kTimeToComeBack + options_.lost_node_after;
  }
  return found->info.state() == v1::NODE_STATE_OFFLINE &&
         clock_->Now() - found->offline_since >= options_.lost_node_after;
}

void Reconciler::GiveUpLostWorkers(const JobBook::Record& job) {
  for (const v1::JobWorkerRecord& worker : job->workers()) {
    if (worker.released() || !IsLost(worker.node())) continue;
    LOG(WARNING) << worker.worker_id() << " is taken as lost with node " << worker.node();
    v1::WorkerReport gone = worker.report();
    gone.set_worker_id(worker.worker_id());
    gone.set_state(v1::WORKER_STATE_EXITED);
    gone.set_exit_code(-1);
    gone.set_message(kLostWorker);
    Record(job->id(), worker.worker_id(), gone);
  }
}

// What of the last attempt is still there, or "": two attempts never share a GPU's memory.
std::string Reconciler::NotYetGone(const v1::JobRecord& job) const {
  for (const v1::JobWorkerRecord& worker : job.workers()) {
    if (!worker.released()) {
      return absl::StrCat("node ", worker.node(), " is OFFLINE and rank ", worker.rank(),
                          " may still run there: waits for its agent to report, at most ",
                          absl::FormatDuration(options_.lost_node_after));
    }
  }
  const int leases = leases_held_ ? leases_held_(job.id()) : 0;
  if (leases > 0) return absl::StrCat("waits for ", leases, " leases to be given back");
  for (const v1::JobWorkerRecord& worker : job.workers()) {
    const absl::StatusOr<Node> node = registry_->Find(worker.node());
    // What an OFFLINE node last said stays; its GPUs get no seat before it is back.
    if (!node.ok() || node->info.state() == v1::NODE_STATE_OFFLINE) continue;
    for (const v1::GpuInfo& gpu : node->info.gpus()) {
      if (gpu.uuid() == worker.gpu() && gpu.used_bytes() > 0) {
        return absl::StrCat("waits for ", gpu.used_bytes(), " bytes on ", gpu.uuid(),
                            " to be free");
      }
    }
  }
  return "";
}

}  // namespace hyperframes
