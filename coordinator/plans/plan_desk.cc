#include "coordinator/plans/plan_desk.h"

#include <glog/logging.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/random_id.h"
#include "common/status_macros.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/plans/network_links.h"
#include "coordinator/plans/plan_problem.h"

namespace hyperframes {
namespace {

// Tells two profiles of one rank apart, also after a restart. Not a secret: the token guards.
std::string Digest(const v1::CreatePlanRequest& request) {
  v1::CreatePlanRequest content = request;
  content.clear_version();
  content.clear_job_token();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    content.SerializeToCodedStream(&coded);
  }
  uint64_t hash = 14695981039346656037u;  // FNV-1a.
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return absl::StrFormat("%016x-%d", hash, bytes.size());
}

std::string MissingRanks(const std::vector<bool>& present) {
  std::string missing;
  int count = 0;
  for (size_t rank = 0; rank < present.size(); ++rank) {
    if (present[rank] || ++count > 20) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
  }
  if (count > 20) absl::StrAppend(&missing, " and ", count - 20, " more");
  return missing;
}

bool BorrowsElsewhere(const v1::JobRecord& job, const v1::FramePlan& plan) {
  for (const v1::RankPlan& rank : plan.ranks()) {
    for (const v1::LeaseNeed& need : rank.leases()) {
      if (need.node() != job.workers(rank.rank()).node()) return true;
    }
  }
  return false;
}

// The rank's own GPU, and its links with the devices that it was granted.
void DescribeSurroundings(const NodeRegistry& registry, const Node& node, const std::string& gpu,
                          v1::CreatePlanResponse* response) {
  std::set<std::string> granted;
  for (const v1::LeaseGrant& grant : response->leases()) {
    granted.insert(grant.device());
    if (grant.transfer_address().empty()) continue;
    const absl::StatusOr<Node> other = registry.Find(grant.node());
    if (!other.ok()) continue;  // Gone since: the lease is lost, and nothing is planned with it.
    *response->add_links() = NetworkLink(node, gpu, *other, grant.device());
  }
  for (const v1::LinkProfile& link : node.info.links()) {
    if ((link.from() == gpu && granted.count(link.to()) > 0) ||
        (link.to() == gpu && granted.count(link.from()) > 0)) {
      *response->add_links() = link;
    }
  }
  for (const v1::GpuInfo& own : node.info.gpus()) {
    if (own.uuid() != gpu) continue;
    response->mutable_gpu()->set_uuid(gpu);
    response->mutable_gpu()->set_node(node.info.node());
    response->mutable_gpu()->set_transfer_bytes(node.info.network().transfer_bytes());
    response->mutable_gpu()->set_usable_bytes(
        std::max<Bytes>(0, own.total_bytes() - own.lent_bytes()));
  }
}

}  // namespace

PlanDesk::PlanDesk(Options options, PlanFunction planner, JobBook* jobs, LeaseBook* leases,
                   const NodeRegistry* registry, AgentClient* agents, const Clock* clock)
    : options_(std::move(options)),
      planner_(std::move(planner)),
      jobs_(jobs),
      leases_(leases),
      registry_(registry),
      agents_(agents),
      clock_(clock) {}

absl::StatusOr<JobBook::Record> PlanDesk::Admit(const v1::CreatePlanRequest& request) const {
  HF_ASSIGN_OR_RETURN(const JobBook::Record job, jobs_->Get(request.job_id()));
  if (!TokensEqual(request.job_token(), job->token())) {
    return absl::PermissionDeniedError(absl::StrCat(
        "job_token is not job ", job->id(), "'s; use the worker's own HYPERFRAMES_JOB_TOKEN"));
  }
  if (job->state() != v1::JOB_STATE_STARTING && !RanksRun(job->state())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job->id(), " is ", JobStateName(job->state()), "; only a running job gets a plan"));
  }
  if (request.world_size() != job->workers_size()) {
    return absl::InvalidArgumentError(absl::StrCat("world_size ", request.world_size(), ": job ",
                                                   job->id(), " has ", job->workers_size(),
                                                   " ranks"));
  }
  const int rank = request.rank().rank();
  if (rank < 0 || rank >= job->workers_size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank.rank is ", rank, "; the ranks of job ",
                                                   job->id(), " are 0 to ",
                                                   job->workers_size() - 1));
  }
  const std::string& current = job->workers(rank).worker_id();
  if (!request.worker_id().empty() && request.worker_id() != current) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker '", request.worker_id().substr(0, 80), "' was given up: rank ", rank,
                     " of job ", job->id(), " is now ", current, "; end this process"));
  }
  const std::string& gpu = request.rank().gpu();
  if (!gpu.empty() && gpu != job->workers(rank).gpu()) {
    return absl::InvalidArgumentError(absl::StrCat("rank.gpu '", gpu.substr(0, 80), "': rank ",
                                                   rank, " was given ", job->workers(rank).gpu(),
                                                   "; leave it empty"));
  }
  return job;
}

std::shared_ptr<PlanDesk::Round> PlanDesk::RoundFor(const v1::JobRecord& job) {
  std::shared_ptr<Round>& round = rounds_[job.id()];
  if (round == nullptr) {
    round = std::make_shared<Round>();
    const size_t ranks = static_cast<size_t>(job.workers_size());
    round->present.resize(ranks);
    round->requests.resize(ranks);
    round->digests.resize(ranks);
  }
  return round;
}

absl::StatusOr<v1::CreatePlanResponse> PlanDesk::CreatePlan(const v1::CreatePlanRequest& request) {
  HF_ASSIGN_OR_RETURN(const JobBook::Record job, Admit(request));
  const int rank = request.rank().rank();
  const size_t index = static_cast<size_t>(rank);
  const std::string digest = Digest(request);
  const absl::StatusOr<v1::PlanRecord> committed = leases_->GetPlan(job->id());
  // Another attempt's plan is for other workers and perhaps other GPUs; 0: from before attempts
  // were recorded.
  const bool current =
      committed.ok() && (committed->attempt() == 0 || committed->attempt() == job->attempt());
  if (current && committed->profile_digests(rank) == digest) {
    absl::StatusOr<v1::CreatePlanResponse> answer = Answer(*job, rank, *committed);
    // A lease of it may have ended since (its agent was restarted): then it is planned anew.
    if (!absl::IsAborted(answer.status())) return answer;
  } else if (!committed.ok() && !absl::IsNotFound(committed.status())) {
    return committed.status();
  }
  MutexLock lock(&mutex_);
  const std::shared_ptr<Round> round = RoundFor(*job);
  if (round->planning && round->digests[index] != digest) {
    return absl::AbortedError(
        absl::StrCat("a plan for job ", job->id(), " is being made of other profiles; ask again"));
  }
  round->present[index] = true;
  round->requests[index] = request;
  round->digests[index] = digest;
  const bool all = std::count(round->present.begin(), round->present.end(), false) == 0;
  if (all && !round->planning) {
    round->planning = true;
    mutex_.Unlock();
    absl::StatusOr<v1::PlanRecord> made = MakePlan(*job, *round);
    mutex_.Lock();
    round->status = made.status();
    if (made.ok()) round->plan = *std::move(made);
    round->done = true;
    rounds_.erase(job->id());
    changed_.NotifyAll();
  } else {
    HF_RETURN_IF_ERROR(Wait(request, round));
    if (round->digests[index] != digest) {
      return absl::AbortedError(absl::StrCat("rank ", rank, " of job ", job->id(),
                                             " has asked again with another profile; ask again"));
    }
  }
  HF_RETURN_IF_ERROR(round->status);
  return Answer(*job, rank, round->plan);
}

absl::Status PlanDesk::Wait(const v1::CreatePlanRequest& request,
                            const std::shared_ptr<Round>& round) {
  ++round->waiting;
  changed_.WaitFor(&mutex_, options_.wait,
                   [&]() HF_NO_THREAD_SAFETY_ANALYSIS { return round->done || stopped_; });
  // Once all are here the answer is a matter of agents' deadlines.
  if (round->planning && !stopped_) {
    changed_.Wait(&mutex_, [&]() HF_NO_THREAD_SAFETY_ANALYSIS { return round->done || stopped_; });
  }
  --round->waiting;
  if (round->done) return absl::OkStatus();
  const auto current = rounds_.find(request.job_id());
  if (round->waiting == 0 && !round->planning && current != rounds_.end() &&
      current->second == round) {
    rounds_.erase(current);
  }
  if (stopped_) return absl::UnavailableError("this coordinator stops; ask again");
  return absl::DeadlineExceededError(absl::StrCat(
      "job ", request.job_id(), ": no profile within ", absl::FormatDuration(options_.wait),
      " from rank ", MissingRanks(round->present), "; every rank has to ask for a plan"));
}

absl::StatusOr<v1::PlanRecord> PlanDesk::MakePlan(const v1::JobRecord& job, const Round& round) {
  const absl::Time start = clock_->Now();
  v1::PlanRecord record;
  record.set_job_id(job.id());
  record.set_attempt(job.attempt());
  for (const std::string& digest : round.digests) record.add_profile_digests(digest);
  int64_t epoch = job.plan_epoch();
  const absl::StatusOr<v1::PlanRecord> before = leases_->GetPlan(job.id());
  if (before.ok()) epoch = std::max(epoch, before->plan().epoch());
  GiveBack(leases_->OfJob(job.id()), "replaced");
  HF_RETURN_IF_ERROR(PlanAndLease(job, round, epoch + 1, &record));
  const auto updated = jobs_->Update(job.id(), [&](v1::JobRecord* edited) {
    edited->set_plan_id(record.plan().id());
    edited->set_plan_epoch(record.plan().epoch());
    return absl::OkStatus();
  });
  // The plan stands either way; the job shows it after the next one.
  if (!updated.ok()) LOG(WARNING) << job.id() << ": " << updated.status();
  if (options_.on_plan) options_.on_plan(clock_->Now() - start, record.plan().epoch());
  return record;
}

absl::Status PlanDesk::PlanAndLease(const v1::JobRecord& job, const Round& round, int64_t epoch,
                                    v1::PlanRecord* record) {
  absl::Status first;
  for (const bool across_nodes : {true, false}) {
    absl::StatusOr<v1::FramePlan> plan = AskPlanner(job, round, across_nodes);
    if (!plan.ok()) return first.ok() ? plan.status() : first;
    *record->mutable_plan() = *std::move(plan);
    record->mutable_plan()->set_epoch(epoch);
    absl::Status taken = TakeLeases(job, *record);
    if (taken.ok()) return taken;
    if (first.ok()) first = taken;
    const bool gone = absl::IsUnavailable(taken) || absl::IsDeadlineExceeded(taken);
    if (!gone || !BorrowsElsewhere(job, record->plan())) break;
    LOG(WARNING) << job.id() << ": planned without other nodes: " << taken;
  }
  return first;
}

absl::StatusOr<v1::FramePlan> PlanDesk::AskPlanner(const v1::JobRecord& job, const Round& round,
                                                   bool across_nodes) {
  std::vector<Node> nodes = registry_->List();
  for (Node& node : nodes) {
    if (!across_nodes) node.info.clear_network();
  }
  const v1::PlanProblem problem =
      BuildPlanProblem(job, round.requests, nodes, jobs_->Active(), leases_->All());
  HF_ASSIGN_OR_RETURN(v1::FramePlan plan, planner_(problem));
  HF_RETURN_IF_ERROR(CheckPlan(job, problem, plan));
  NameLenders(problem, &plan);
  return plan;
}

std::vector<v1::LeaseRecord> PlanDesk::LeasesOf(const v1::JobRecord& job,
                                                const v1::PlanRecord& plan) const {
  std::vector<v1::LeaseRecord> leases;
  for (const v1::RankPlan& rank : plan.plan().ranks()) {
    for (const v1::LeaseNeed& need : rank.leases()) {
      v1::LeaseRecord lease;
      lease.set_lease_id(absl::StrCat("lease-", RandomHex(8)));
      lease.set_job_id(job.id());
      lease.set_rank(rank.rank());
      lease.set_node(need.node());
      const std::string& holder = job.workers(rank.rank()).node();
      if (holder != need.node()) lease.set_holder_node(holder);
      lease.set_staging_bytes(need.staging_bytes());
      lease.set_device(need.device());
      lease.set_tier(need.tier());
      lease.set_bytes(need.bytes());
      lease.set_token(RandomHex(16));
      lease.set_state(v1::LEASE_STATE_PREPARED);
      lease.set_epoch(options_.epoch);
      lease.set_plan_epoch(plan.plan().epoch());
      leases.push_back(std::move(lease));
    }
  }
  return leases;
}

absl::Status PlanDesk::TakeLeases(const v1::JobRecord& job, const v1::PlanRecord& plan) {
  std::vector<v1::LeaseRecord> leases = LeasesOf(job, plan);
  HF_RETURN_IF_ERROR(leases_->Add(leases));
  absl::Status status = PrepareAndCommit(&leases);
  if (status.ok()) status = leases_->CommitPlan(plan, leases);
  if (!status.ok()) GiveBack(leases, "aborted");
  return status;
}

absl::Status PlanDesk::PrepareAndCommit(std::vector<v1::LeaseRecord>* leases) {
  for (v1::LeaseRecord& lease : *leases) {
    HF_ASSIGN_OR_RETURN(const std::string address, AgentAddress(lease.node()));
    v1::PrepareLeaseRequest request;
    request.set_epoch(options_.epoch);
    request.set_lease_id(lease.lease_id());
    request.set_job_id(lease.job_id());
    request.set_rank(lease.rank());
    request.set_token(lease.token());
    request.set_device(lease.device());
    request.set_tier(lease.tier());
    request.set_bytes(lease.bytes());
    request.set_holder_node(lease.holder_node());
    HF_ASSIGN_OR_RETURN(const v1::LeaseResponse prepared, agents_->PrepareLease(address, request));
    lease.set_transfer_address(prepared.transfer_address());
    if (lease.holder_node().empty() == prepared.transfer_address().empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "node ", lease.node(), " lends ", lease.device(), " without an hftransfer for ", "node ",
        lease.holder_node(), "; install one release on all nodes"));
  }
  for (const v1::LeaseRecord& lease : *leases) {
    HF_ASSIGN_OR_RETURN(const std::string address, AgentAddress(lease.node()));
    v1::LeaseRequest request;
    request.set_epoch(options_.epoch);
    request.set_lease_id(lease.lease_id());
    HF_RETURN_IF_ERROR(agents_->CommitLease(address, request).status());
  }
  return absl::OkStatus();
}

void PlanDesk::GiveBack(const std::vector<v1::LeaseRecord>& leases, const std::string& reason) {
  const absl::Status revoked = leases_->Revoke(leases);
  if (!revoked.ok()) LOG(WARNING) << "leases to give back: " << revoked;
  for (const v1::LeaseRecord& lease : leases) {
    const absl::StatusOr<std::string> address = AgentAddress(lease.node());
    if (!address.ok()) continue;
    v1::LeaseRequest request;
    request.set_epoch(options_.epoch);
    request.set_lease_id(lease.lease_id());
    request.set_reason(reason);
    const absl::Status released = agents_->ReleaseLease(*address, request).status();
    if (!released.ok() && !absl::IsNotFound(released)) {
      LOG(WARNING) << "lease " << lease.lease_id() << ": " << released << "; reclaimed later";
      continue;
    }
    leases_->Remove(lease.lease_id(), reason).IgnoreError();
  }
}

absl::StatusOr<std::string> PlanDesk::AgentAddress(const std::string& node) const {
  const absl::StatusOr<Node> found = registry_->Find(node);
  if (!found.ok() || found->info.state() == v1::NODE_STATE_OFFLINE) {
    return absl::UnavailableError(
        absl::StrCat("node ", node, found.ok() ? " is OFFLINE" : " has not registered yet",
                     "; ask for the plan again when its agent is back"));
  }
  return found->info.agent_address();
}

absl::StatusOr<v1::CreatePlanResponse> PlanDesk::Answer(const v1::JobRecord& job, int rank,
                                                        const v1::PlanRecord& plan) const {
  v1::CreatePlanResponse response;
  response.set_plan_id(plan.plan().id());
  response.set_plan_epoch(plan.plan().epoch());
  response.set_advice(plan.plan().advice());
  for (const v1::RankPlan& own : plan.plan().ranks()) {
    if (own.rank() == rank) *response.mutable_plan() = own;
  }
  const absl::StatusOr<Node> node = registry_->Find(job.workers(rank).node());
  if (!node.ok()) {
    return absl::UnavailableError(
        absl::StrCat(node.status().message(), " since this coordinator started; ask again"));
  }
  // A rank sees its own tokens and nobody else's.
  for (const v1::LeaseRecord& lease : leases_->OfJob(job.id())) {
    if (lease.rank() != rank || lease.plan_epoch() != plan.plan().epoch() ||
        lease.state() != v1::LEASE_STATE_COMMITTED) {
      continue;
    }
    v1::LeaseGrant* grant = response.add_leases();
    grant->set_lease_id(lease.lease_id());
    grant->set_token(lease.token());
    grant->set_device(lease.device());
    grant->set_tier(lease.tier());
    grant->set_bytes(lease.bytes());
    grant->set_worker_socket(node->worker_socket);
    grant->set_node(lease.node());
    grant->set_transfer_address(lease.transfer_address());
    grant->set_staging_bytes(lease.staging_bytes());
  }
  DescribeSurroundings(*registry_, *node, job.workers(rank).gpu(), &response);
  if (response.leases_size() != response.plan().leases_size()) {
    return absl::AbortedError(absl::StrCat(
        "rank ", rank, " has ", response.leases_size(), " of the ", response.plan().leases_size(),
        " leases of plan ", plan.plan().id(), ": an agent gave some back; ask for a new plan"));
  }
  return response;
}

absl::StatusOr<v1::FramePlan> PlanDesk::GetPlan(const std::string& job_id) {
  HF_RETURN_IF_ERROR(jobs_->Get(job_id).status());
  HF_ASSIGN_OR_RETURN(const v1::PlanRecord record, leases_->GetPlan(job_id));
  return record.plan();
}

int PlanDesk::waiting() const {
  MutexLock lock(&mutex_);
  int waiting = 0;
  for (const auto& named : rounds_) waiting += named.second->waiting;
  return waiting;
}

void PlanDesk::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

}  // namespace hyperframes
