#include "coordinator/jobs/reconciler.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/jobs/admission.h"
#include "coordinator/jobs/failures.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/worker_reports.h"
#include "coordinator/membership/node_state.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kDefaultGrace = absl::Seconds(10);

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

absl::Duration Grace(const v1::JobRecord& job) {
  return job.spec().grace_s() > 0 ? absl::Seconds(job.spec().grace_s()) : kDefaultGrace;
}

std::string AllRanksRun(int ranks) {
  return ranks == 1 ? "its only rank runs" : absl::StrCat("all ", ranks, " ranks run");
}

// What was said of its last checkpoint stays: it says as well that it runs.
std::string RunsText(const v1::JobRecord& job) {
  return absl::StartsWith(job.message(), kItsRanksRun) ? job.message()
                                                       : AllRanksRun(job.workers_size());
}

}  // namespace

Reconciler::Reconciler(Options options, JobBook* book, const NodeRegistry* registry,
                       AgentClient* agents, const Clock* clock)
    : options_(std::move(options)),
      book_(book),
      registry_(registry),
      agents_(agents),
      clock_(clock),
      born_(clock->Now()) {}

Reconciler::~Reconciler() { Stop(); }

void Reconciler::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Reconciler::Stop() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    woken_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Reconciler::Wake() {
  MutexLock lock(&mutex_);
  wake_ = true;
  woken_.NotifyAll();
}

void Reconciler::Loop() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      woken_.WaitFor(&mutex_, options_.interval,
                     [this]() HF_NO_THREAD_SAFETY_ANALYSIS { return wake_ || stop_; });
      if (stop_) return;
      wake_ = false;
    }
    RunOnce();
  }
}

void Reconciler::RunOnce() {
  for (auto it = stop_sent_.begin(); it != stop_sent_.end();) {
    it = clock_->Now() - it->second > absl::Minutes(10) ? stop_sent_.erase(it) : std::next(it);
  }
  for (const JobBook::Record& job : book_->Active()) GiveUpLostWorkers(job);
  for (const JobBook::Record& job : book_->Active()) Advance(job);
  AdmitQueued(book_->Active());
  if (also_) also_();
}

void Reconciler::AdmitQueued(const std::vector<JobBook::Record>& active) {
  ClusterView view = ViewCluster(registry_->List(), active);
  std::vector<JobBook::Record> queued;
  std::copy_if(active.begin(), active.end(), std::back_inserter(queued),
               [](const auto& job) { return job->state() == v1::JOB_STATE_QUEUED; });
  const std::vector<Verdict> verdicts =
      AdmitQueue(queued, options_.gang_patience, book_->wall_now(), &view);
  for (size_t i = 0; i < queued.size(); ++i) {
    const JobBook::Record& job = queued[i];
    const Verdict& verdict = verdicts[i];
    if (!verdict.admitted) book_->Explain(job->id(), verdict.reason, verdict.message);
    const bool passed = verdict.passed && job->passed_since_unix_s() == 0;
    if (!verdict.admitted && !passed) continue;
    const auto updated = book_->Update(job->id(), [&](v1::JobRecord* record) {
      // Cancelled since the look.
      if (record->state() != v1::JOB_STATE_QUEUED) return absl::OkStatus();
      if (passed) {
        // In the store: a coordinator that restarts often must not let it starve.
        record->set_passed_since_unix_s(UnixSeconds(book_->wall_now()));
        return absl::OkStatus();
      }
      record->clear_passed_since_unix_s();
      record->set_state(v1::JOB_STATE_ADMITTED);
      record->set_reason("admitted");
      record->set_message(absl::StrCat("has ", verdict.seats.size(), " GPUs"));
      SeatWorkers(verdict.seats, record);
      return absl::OkStatus();
    });
    if (!updated.ok()) LOG(WARNING) << "admission of " << job->id() << ": " << updated.status();
  }
}

void Reconciler::Advance(const JobBook::Record& job) {
  switch (job->state()) {
    case v1::JOB_STATE_ADMITTED:
      return Begin(job);
    case v1::JOB_STATE_STARTING:
      return StartWorkers(job);
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_CHECKPOINTING:
      return Judge(job);
    case v1::JOB_STATE_RESTARTING:
      return Restart(job);
    case v1::JOB_STATE_STOPPING:
      return StopWorkers(job);
    default:
      return;
  }
}

void Reconciler::Begin(const JobBook::Record& job) {
  const std::string& node = job->workers(0).node();
  for (const v1::JobWorkerRecord& worker : job->workers()) {
    if (!Unreachable(worker.node())) continue;
    const auto requeued = book_->Update(job->id(), [&](v1::JobRecord* record) {
      if (record->state() != v1::JOB_STATE_ADMITTED) return absl::OkStatus();
      record->set_state(v1::JOB_STATE_QUEUED);
      record->set_reason("node_lost");
      record->set_message(absl::StrCat("node ", worker.node(), " went away before the start"));
      record->clear_workers();
      return absl::OkStatus();
    });
    if (!requeued.ok()) LOG(WARNING) << job->id() << ": " << requeued.status();
    return;
  }
  const absl::StatusOr<std::string> address = Address(node);
  if (!address.ok()) return;
  v1::ReservePortRequest request;
  request.set_epoch(options_.epoch);
  request.set_job_id(job->id());
  const absl::StatusOr<v1::ReservePortResponse> port = agents_->ReservePort(*address, request);
  if (!port.ok()) {
    if (!Later(node, port.status())) {
      Fail(job->id(), "start_failed",
           absl::StrCat("node ", node, " gave no rendezvous port: ", port.status().message()));
    }
    return;
  }
  const auto started = book_->Update(job->id(), [&](v1::JobRecord* record) {
    if (record->state() != v1::JOB_STATE_ADMITTED) return absl::OkStatus();
    record->set_state(v1::JOB_STATE_STARTING);
    record->set_reason("starting");
    record->set_message("workers are being started");
    record->set_master_address(port->host());
    record->set_master_port(port->port());
    if (record->started_unix_s() == 0) record->set_started_unix_s(UnixSeconds(book_->wall_now()));
    return absl::OkStatus();
  });
  if (started.ok()) StartWorkers(*started);
}

namespace {

// Nodes of a job are numbered in the order in which its ranks name them: they need not have equally
// many ranks, so no division tells the number.
int GroupRank(const v1::JobRecord& job, const std::string& node) {
  std::vector<std::string> nodes;
  for (const v1::JobWorkerRecord& worker : job.workers()) {
    if (worker.node() == node) break;
    if (std::find(nodes.begin(), nodes.end(), worker.node()) == nodes.end()) {
      nodes.push_back(worker.node());
    }
  }
  return static_cast<int>(nodes.size());
}

// So that a script which computes on cuda:LOCAL_RANK, as under torchrun, finds its own GPU there.
google::protobuf::RepeatedPtrField<std::string> LocalGpus(const v1::JobRecord& job,
                                                          const std::string& node) {
  std::map<int32_t, std::string> by_local_rank;
  for (const v1::JobWorkerRecord& worker : job.workers()) {
    if (worker.node() == node) by_local_rank[worker.local_rank()] = worker.gpu();
  }
  google::protobuf::RepeatedPtrField<std::string> gpus;
  for (auto& named : by_local_rank) *gpus.Add() = std::move(named.second);
  return gpus;
}

}  // namespace

v1::StartWorkerRequest Reconciler::StartRequest(const v1::JobRecord& job,
                                                const v1::JobWorkerRecord& worker) const {
  v1::StartWorkerRequest request;
  request.set_epoch(options_.epoch);
  request.set_worker_id(worker.worker_id());
  request.set_job_id(job.id());
  request.set_rank(worker.rank());
  request.set_world_size(job.workers_size());
  request.set_local_rank(worker.local_rank());
  request.set_local_world_size(worker.local_world_size());
  request.set_group_rank(GroupRank(job, worker.node()));
  request.set_gpu(worker.gpu());
  *request.mutable_local_gpus() = LocalGpus(job, worker.node());
  request.set_master_address(job.master_address());
  request.set_master_port(job.master_port());
  *request.mutable_command() = job.spec().command();
  *request.mutable_env() = job.spec().env();
  request.set_working_directory(job.spec().working_directory());
  request.set_job_token(job.token());
  request.set_coordinator_address(coordinator_address_);
  request.set_restart_count(job.restarts());
  return request;
}

void Reconciler::StartWorkers(const JobBook::Record& job) {
  if (job->state() != v1::JOB_STATE_STARTING) return;
  const double started_s = UnixSeconds(book_->wall_now()) - job->state_since_unix_s();
  std::string waiting;
  for (const v1::JobWorkerRecord& worker : job->workers()) {
    if (Failed(worker)) return Judge(job);
    if (worker.report().state() == v1::WORKER_STATE_RUNNING ||
        worker.report().state() == v1::WORKER_STATE_EXITED) {
      continue;
    }
    if (waiting.empty()) {
      waiting = absl::StrCat("rank ", worker.rank());
      if (!worker.node().empty()) absl::StrAppend(&waiting, " on node ", worker.node());
    }
    // Others start the ranks of an attached job: here it is only waited for.
    if (job->attached() || worker.report().state() != v1::WORKER_STATE_UNSPECIFIED) continue;
    const absl::StatusOr<std::string> address = Address(worker.node());
    if (!address.ok()) continue;
    const absl::StatusOr<v1::WorkerReport> report =
        agents_->StartWorker(*address, StartRequest(*job, worker));
    if (report.ok()) {
      Record(job->id(), worker.worker_id(), *report);
    } else if (!Later(worker.node(), report.status())) {
      return Fail(job->id(), "start_failed",
                  absl::StrCat("rank ", worker.rank(), " on node ", worker.node(),
                               " could not be started: ", report.status().message()));
    }
  }
  if (waiting.empty()) {
    const auto running = book_->Update(job->id(), [](v1::JobRecord* record) {
      if (record->state() != v1::JOB_STATE_STARTING) return absl::OkStatus();
      record->set_state(v1::JOB_STATE_RUNNING);
      record->set_reason("running");
      record->set_message(AllRanksRun(record->workers_size()));
      return absl::OkStatus();
    });
    if (running.ok()) Judge(*running);
  } else if (EndOverdue(*job)) {
    return;
  } else if (started_s > absl::ToDoubleSeconds(options_.start_timeout)) {
    Fail(job->id(), "start_timeout",
         absl::StrCat(waiting, " did not run within ",
                      absl::FormatDuration(options_.start_timeout)));
  }
}

void Reconciler::Judge(const JobBook::Record& job) {
  const v1::JobWorkerRecord* failed = FirstFailed(*job);
  if (failed != nullptr) return FailOrRestart(*job, *failed);
  if (!RanksRun(job->state())) return;
  const bool all_ended = std::all_of(job->workers().begin(), job->workers().end(),
                                     [](const v1::JobWorkerRecord& worker) {
                                       return worker.report().state() == v1::WORKER_STATE_EXITED;
                                     });
  if (all_ended) {
    const auto ended = book_->Update(job->id(), [](v1::JobRecord* record) {
      if (!RanksRun(record->state())) return absl::OkStatus();
      record->set_state(v1::JOB_STATE_SUCCEEDED);
      record->set_reason("succeeded");
      record->set_message(record->workers_size() == 1 ? "its only rank exited with 0"
                                                      : absl::StrCat("all ", record->workers_size(),
                                                                     " ranks exited with 0"));
      return absl::OkStatus();
    });
    if (!ended.ok()) LOG(WARNING) << job->id() << ": " << ended.status();
    return;
  }
  if (EndOverdue(*job)) return;
  // A lost agent is no lost worker: the job runs on, and its user is told what is not known.
  std::string message = RunsText(*job);
  for (const v1::JobWorkerRecord& worker : job->workers()) {
    if (worker.released() || !Unreachable(worker.node())) continue;
    message = absl::StrCat("node ", worker.node(), " is OFFLINE; rank ", worker.rank(),
                           " is taken to run on until its agent reports again, or for ",
                           absl::FormatDuration(options_.lost_node_after));
    break;
  }
  if (job->state() == v1::JOB_STATE_RUNNING) book_->Explain(job->id(), "running", message);
}

std::string Reconciler::StopRanks(const v1::JobRecord& job) {
  std::string waiting;
  for (const v1::JobWorkerRecord& worker : job.workers()) {
    if (worker.released()) continue;
    const absl::Status stopped = StopOne(job, worker);
    if (!stopped.ok()) waiting = std::string(stopped.message());
  }
  return waiting;
}

void Reconciler::StopWorkers(const JobBook::Record& job) {
  const std::string waiting = StopRanks(*job);
  if (!waiting.empty()) {
    book_->Explain(job->id(), job->reason(), absl::StrCat(job->final_message(), "; ", waiting));
    return;
  }
  const auto ended = book_->Update(job->id(), [](v1::JobRecord* record) {
    if (record->state() != v1::JOB_STATE_STOPPING) return absl::OkStatus();
    // The rank whose end was heard of first need not be the one that ended first.
    const v1::JobWorkerRecord* first = FirstFailed(*record);
    if (first != nullptr && IsFailureReason(record->final_reason())) {
      record->set_final_reason(FailureReason(*first));
      record->set_final_message(FailureText(*record, *first));
    }
    record->set_state(record->final_state());
    record->set_reason(record->final_reason());
    record->set_message(record->final_message());
    return absl::OkStatus();
  });
  if (!ended.ok()) LOG(WARNING) << job->id() << ": " << ended.status();
}

// OK when the job need not wait for this worker any more.
absl::Status Reconciler::StopOne(const v1::JobRecord& job, const v1::JobWorkerRecord& worker) {
  const std::string name = absl::StrCat("rank ", worker.rank(), " on node ", worker.node());
  // Its GPU stays reserved until the agent is back and says that the worker ended.
  if (Unreachable(worker.node())) return absl::OkStatus();
  absl::Status waits = absl::UnavailableError(absl::StrCat("waits for ", name, " to end"));
  // torchrun ends what torchrun started, unless the user asked for a signal.
  if (job.attached() && !job.may_signal()) return waits;
  const auto sent = stop_sent_.find(worker.worker_id());
  if (sent != stop_sent_.end() && clock_->Now() - sent->second < options_.stop_again_after) {
    return waits;
  }
  const absl::StatusOr<std::string> address = Address(worker.node());
  if (!address.ok()) return waits;
  v1::StopWorkerRequest request;
  request.set_epoch(options_.epoch);
  request.set_worker_id(worker.worker_id());
  request.set_grace_s(absl::ToDoubleSeconds(Grace(job)));
  const absl::StatusOr<v1::WorkerReport> report = agents_->StopWorker(*address, request);
  if (report.ok()) {
    Record(job.id(), worker.worker_id(), *report);
    if (report->state() == v1::WORKER_STATE_EXITED) return absl::OkStatus();
    stop_sent_[worker.worker_id()] = clock_->Now();
    return waits;
  }
  if (absl::IsNotFound(report.status())) {
    v1::WorkerReport gone = worker.report();
    gone.set_state(v1::WORKER_STATE_EXITED);
    gone.set_exit_code(-1);
    gone.set_message("its agent does not know it");
    Record(job.id(), worker.worker_id(), gone);
    return absl::OkStatus();
  }
  if (!Later(worker.node(), report.status())) {
    LOG(WARNING) << "stopping " << worker.worker_id() << ": " << report.status();
    stop_sent_[worker.worker_id()] = clock_->Now();
  }
  return waits;
}

void Reconciler::Record(const std::string& job, const std::string& worker,
                        const v1::WorkerReport& report) {
  const auto updated = book_->Update(job, [&](v1::JobRecord* record) {
    for (auto& known : *record->mutable_workers()) {
      if (known.worker_id() == worker) MergeReport(report, book_->wall_now(), &known);
    }
    return absl::OkStatus();
  });
  if (!updated.ok()) LOG(WARNING) << worker << ": " << updated.status();
}

void Reconciler::Fail(const std::string& job, const std::string& reason,
                      const std::string& message) {
  End(job, v1::JOB_STATE_FAILED, reason, message);
}

bool Reconciler::EndOverdue(const v1::JobRecord& job) {
  const double limit_s = job.spec().time_limit_s();
  if (limit_s <= 0 || job.started_unix_s() == 0) return false;
  if (UnixSeconds(book_->wall_now()) - job.started_unix_s() < limit_s) return false;
  End(job.id(), v1::JOB_STATE_TIMEOUT, "time_limit",
      absl::StrCat("its time limit of ", absl::FormatDuration(absl::Seconds(limit_s)),
                   " was reached; its workers had ", absl::FormatDuration(Grace(job)),
                   " to save and end"));
  return true;
}

void Reconciler::End(const std::string& job, v1::JobState final_state, const std::string& reason,
                     const std::string& message) {
  const auto updated = book_->Update(job, [&](v1::JobRecord* record) {
    if (IsFinalJobState(record->state()) || record->state() == v1::JOB_STATE_STOPPING) {
      return absl::OkStatus();
    }
    record->set_state(v1::JOB_STATE_STOPPING);
    record->set_reason(reason);
    record->set_message(message);
    record->set_final_state(final_state);
    record->set_final_reason(reason);
    record->set_final_message(message);
    return absl::OkStatus();
  });
  if (!updated.ok()) LOG(WARNING) << job << ": " << updated.status();
}

absl::StatusOr<std::string> Reconciler::Address(const std::string& node) const {
  const auto later = not_before_.find(node);
  if (later != not_before_.end() && clock_->Now() < later->second) {
    return absl::UnavailableError("asked a moment ago");
  }
  HF_ASSIGN_OR_RETURN(const Node found, registry_->Find(node));
  if (found.info.state() != v1::NODE_STATE_ALIVE) {
    return absl::UnavailableError(
        absl::StrCat("node ", node, " is ", NodeStateName(found.info.state())));
  }
  return found.info.agent_address();
}

bool Reconciler::Unreachable(const std::string& node) const {
  const absl::StatusOr<Node> found = registry_->Find(node);
  if (found.ok()) return found->info.state() == v1::NODE_STATE_OFFLINE;
  // Not registered since this coordinator started: give agents time to come back.
  return clock_->Now() - born_ > kTimeToComeBack;
}

bool Reconciler::Later(const std::string& node, const absl::Status& status) {
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) &&
      !absl::IsAborted(status)) {
    return false;
  }
  LOG_EVERY_N(WARNING, 20) << "node " << node << ": " << status << "; asked again later";
  not_before_[node] = clock_->Now() + options_.retry_after;
  return true;
}

}  // namespace hyperframes
