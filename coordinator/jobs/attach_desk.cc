#include "coordinator/jobs/attach_desk.h"

#include <glog/logging.h>

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/random_id.h"
#include "common/status_macros.h"
#include "coordinator/jobs/admission.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/worker_reports.h"
#include "coordinator/membership/node_state.h"

namespace hyperframes {
namespace {

constexpr size_t kMostKeyBytes = 512;

absl::Status CheckRequest(const v1::AttachJobRequest& request) {
  if (request.group_key().empty() || request.group_key().size() > kMostKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_key has ", request.group_key().size(), " bytes; 1 to ", kMostKeyBytes));
  }
  if (request.rank() < 0 || request.rank() >= request.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", request.rank(), " of world_size ",
                                                   request.world_size(),
                                                   ": ranks are 0 to world_size - 1"));
  }
  if (request.process().pid() <= 0 || request.process().boot_id().empty()) {
    return absl::InvalidArgumentError("process: pid, start_time and boot_id name it");
  }
  return absl::OkStatus();
}

bool SameProcess(const v1::ProcessId& a, const v1::ProcessId& b) {
  return a.pid() == b.pid() && a.start_time() == b.start_time() && a.boot_id() == b.boot_id();
}

int CountAttached(const v1::JobRecord& job) {
  return static_cast<int>(std::count_if(job.workers().begin(), job.workers().end(),
                                        [](const auto& worker) { return worker.has_process(); }));
}

v1::JobSpec SpecOf(const v1::AttachJobRequest& request) {
  v1::JobSpec spec;
  spec.set_name(request.name());
  *spec.mutable_command() = request.command();
  spec.set_ranks(request.world_size());
  return spec;
}

}  // namespace

absl::StatusOr<Node> AttachDesk::FindNode(const v1::AttachJobRequest& request) const {
  const std::vector<Node> nodes = registry_->List();
  const std::string& wanted = request.node().empty() ? request.hostname() : request.node();
  std::vector<std::string> names;
  for (const Node& node : nodes) {
    if (node.info.node() == wanted || (request.node().empty() && nodes.size() == 1)) {
      if (node.info.state() == v1::NODE_STATE_ALIVE) return node;
      return absl::UnavailableError(absl::StrCat("node ", node.info.node(), " is ",
                                                 NodeStateName(node.info.state()),
                                                 "; try again when its agent is back"));
    }
    if (names.size() < 10) names.push_back(node.info.node());
  }
  return absl::NotFoundError(absl::StrCat(
      "no node '", wanted.substr(0, 64), "' here (",
      names.empty() ? "no agent has registered" : absl::StrJoin(names, ", "),
      "): start hfagent on it, or set HYPERFRAMES_NODE to the node this process runs on, or unset "
      "HYPERFRAMES_COORDINATOR to run without a coordinator"));
}

absl::StatusOr<std::string> AttachDesk::PickGpu(const v1::AttachJobRequest& request,
                                                const Node& node) const {
  const std::vector<JobBook::Record> active = book_->Active();
  const ClusterView view = ViewCluster(registry_->List(), active);
  const std::string& name = node.info.node();
  for (const FreeGpu& gpu : view.free) {
    if (gpu.node == name && (request.gpu().empty() || gpu.uuid == request.gpu())) return gpu.uuid;
  }
  std::set<std::string> held;
  for (const JobBook::Record& job : active) {
    for (const v1::JobWorkerRecord& worker : job->workers()) {
      if (!worker.released()) held.insert(worker.gpu());
    }
  }
  bool here = request.gpu().empty();
  bool ending = false;
  for (const v1::GpuInfo& gpu : node.info.gpus()) {
    here = here || gpu.uuid() == request.gpu();
    if (!request.gpu().empty() && gpu.uuid() != request.gpu()) continue;
    ending = ending || (!gpu.unhealthy() && held.count(gpu.uuid()) == 0);
  }
  if (!here) {
    return absl::InvalidArgumentError(absl::StrCat("gpu '", request.gpu().substr(0, 80),
                                                   "' is not on node ", name,
                                                   "; leave HYPERFRAMES_GPU unset"));
  }
  // Its node has not yet reported the end of the worker that had it.
  if (ending) {
    return absl::UnavailableError(absl::StrCat("a GPU of node ", name, " is about to be free"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(request.gpu().empty() ? "every GPU" : request.gpu(), " of node ", name,
                   " is held by a job; `hfctl jobs` lists them. Wait for one to end, or submit "
                   "this program with "
                   "`hfctl submit`, which waits in the queue"));
}

absl::StatusOr<JobBook::Record> AttachDesk::TakeSeat(const v1::AttachJobRequest& request,
                                                     const Node& node) {
  absl::StatusOr<JobBook::Record> job = book_->FindAttached(request.group_key());
  if (!job.ok() && !absl::IsNotFound(job.status())) return job;
  if (job.ok() && (*job)->workers_size() != request.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("world_size ", request.world_size(), ": job ",
                                                   (*job)->id(), " of this key has ",
                                                   (*job)->workers_size(), " ranks"));
  }
  if (job.ok() && (*job)->workers(request.rank()).has_process()) {
    const v1::JobWorkerRecord& seat = (*job)->workers(request.rank());
    if (SameProcess(seat.process(), request.process())) return job;
    return absl::UnavailableError(absl::StrCat("rank ", request.rank(), " of job ", (*job)->id(),
                                               " is process ", seat.process().pid(), " on node ",
                                               seat.node(), ", and that job has not ended yet"));
  }
  HF_ASSIGN_OR_RETURN(const std::string gpu, PickGpu(request, node));
  if (!job.ok()) job = book_->SubmitAttached(SpecOf(request), request.group_key());
  HF_RETURN_IF_ERROR(job.status());
  return book_->Update((*job)->id(), [&](v1::JobRecord* record) -> absl::Status {
    if (record->state() != v1::JOB_STATE_STARTING) {
      return absl::UnavailableError(
          absl::StrCat("job ", record->id(), " of this key is ", JobStateName(record->state())));
    }
    v1::JobWorkerRecord* seat = record->mutable_workers(request.rank());
    seat->set_node(node.info.node());
    seat->set_gpu(gpu);
    seat->set_local_rank(request.local_rank());
    seat->set_local_world_size(request.local_world_size());
    *seat->mutable_process() = request.process();
    seat->set_released(false);
    record->set_message(absl::StrCat(CountAttached(*record), " of ", record->workers_size(),
                                     " ranks have attached"));
    return absl::OkStatus();
  });
}

absl::StatusOr<v1::AttachJobResponse> AttachDesk::Attach(const v1::AttachJobRequest& request) {
  HF_RETURN_IF_ERROR(CheckRequest(request));
  HF_ASSIGN_OR_RETURN(const Node node, FindNode(request));
  JobBook::Record job;
  {
    MutexLock lock(&mutex_);
    HF_ASSIGN_OR_RETURN(job, TakeSeat(request, node));
  }
  absl::StatusOr<v1::AttachJobResponse> answer = AskAgent(*job, request.rank(), node);
  const absl::Status& status = answer.status();
  // The same process asks again, and finds its seat.
  const bool again =
      absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
  if (!answer.ok() && !again) Fail(job->id(), request.rank(), status);
  return answer;
}

absl::StatusOr<v1::AttachJobResponse> AttachDesk::AskAgent(const v1::JobRecord& job, int rank,
                                                           const Node& node) {
  const v1::JobWorkerRecord& seat = job.workers(rank);
  v1::AdoptWorkerRequest adopt;
  adopt.set_epoch(epoch_);
  adopt.set_worker_id(seat.worker_id());
  adopt.set_job_id(job.id());
  adopt.set_rank(rank);
  adopt.set_gpu(seat.gpu());
  *adopt.mutable_process() = seat.process();
  adopt.set_job_token(job.token());
  HF_ASSIGN_OR_RETURN(v1::AdoptWorkerResponse adopted,
                      agents_->AdoptWorker(node.info.agent_address(), adopt));
  HF_RETURN_IF_ERROR(book_
                         ->Update(job.id(),
                                  [&](v1::JobRecord* record) {
                                    MergeReport(adopted.worker(), book_->wall_now(),
                                                record->mutable_workers(rank));
                                    return absl::OkStatus();
                                  })
                         .status());
  v1::AttachJobResponse response;
  response.set_job_id(job.id());
  response.set_job_token(job.token());
  response.set_worker_id(seat.worker_id());
  response.set_gpu(seat.gpu());
  response.mutable_environment()->swap(*adopted.mutable_environment());
  return response;
}

void AttachDesk::Fail(const std::string& job, int rank, const absl::Status& status) {
  const std::string message = absl::StrCat("rank ", rank, " could not attach: ", status.message());
  const auto failed = book_->Update(job, [&](v1::JobRecord* record) {
    if (record->state() != v1::JOB_STATE_STARTING) return absl::OkStatus();
    record->mutable_workers(rank)->set_released(true);
    record->set_state(v1::JOB_STATE_STOPPING);
    record->set_reason("attach_failed");
    record->set_message(message);
    record->set_final_state(v1::JOB_STATE_FAILED);
    record->set_final_reason("attach_failed");
    record->set_final_message(message);
    return absl::OkStatus();
  });
  if (!failed.ok()) LOG(WARNING) << job << ": " << failed.status();
}

absl::StatusOr<JobBook::Record> AttachDesk::Detach(const v1::DetachJobRequest& request) {
  HF_ASSIGN_OR_RETURN(const JobBook::Record job, book_->Get(request.job_id()));
  if (!TokensEqual(request.job_token(), job->token())) {
    return absl::PermissionDeniedError(absl::StrCat("job_token is not job ", job->id(), "'s"));
  }
  const auto seat =
      std::find_if(job->workers().begin(), job->workers().end(), [&](const auto& worker) {
        return worker.worker_id() == request.worker_id() && worker.has_process();
      });
  if (!job->attached() || seat == job->workers().end()) {
    return absl::NotFoundError(absl::StrCat("worker '", request.worker_id().substr(0, 80),
                                            "' has not attached to job ", job->id()));
  }
  if (seat->report().state() == v1::WORKER_STATE_EXITED) return job;
  HF_ASSIGN_OR_RETURN(const Node node, registry_->Find(seat->node()));
  v1::DetachWorkerRequest detach;
  detach.set_epoch(epoch_);
  detach.set_worker_id(seat->worker_id());
  detach.set_exit_code(request.exit_code());
  HF_ASSIGN_OR_RETURN(const v1::WorkerReport report,
                      agents_->DetachWorker(node.info.agent_address(), detach));
  return book_->Update(job->id(), [&](v1::JobRecord* record) {
    MergeReport(report, book_->wall_now(), record->mutable_workers(seat->rank()));
    return absl::OkStatus();
  });
}

}  // namespace hyperframes
