#include "coordinator/checkpoints/checkpoint_desk.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/random_id.h"
#include "common/status_macros.h"
#include "coordinator/checkpoints/checkpoint_check.h"
#include "coordinator/checkpoints/checkpoint_state.h"
#include "coordinator/jobs/job_state.h"

namespace hyperframes {
namespace {

using Record = CheckpointBook::Record;

constexpr size_t kMaxReasonBytes = 512;
constexpr int kMaxListed = 1000;
constexpr size_t kMaxListBytes = size_t{16} * 1024 * 1024;
// A record and its answers have to fit into the store and into one message.
constexpr size_t kMaxCheckpointBytes = size_t{16} * 1024 * 1024;

// At most `most` bytes, whole UTF-8 characters.
std::string Cut(std::string text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  text.resize(most);
  return text;
}

absl::Status Stale(const v1::CheckpointCaller& caller, int newest) {
  return absl::AbortedError(absl::StrCat(
      "rank ", caller.rank(), " of job ", caller.job_id(), " calls for attempt ", caller.attempt(),
      ", and attempt ", newest, " has called: this process belongs to the past and should end"));
}

std::string Called(const v1::Checkpoint& checkpoint) {
  return absl::StrCat("checkpoint ", checkpoint.id(), " of step ", checkpoint.global_step());
}

absl::Status WasAborted(const v1::Checkpoint& checkpoint) {
  return absl::AbortedError(
      absl::StrCat(Called(checkpoint), " was aborted: ", checkpoint.message()));
}

}  // namespace

CheckpointDesk::CheckpointDesk(Options options, CheckpointBook* book, JobBook* jobs,
                               const Clock* clock)
    : options_(std::move(options)), book_(book), jobs_(jobs), clock_(clock) {}

v1::Checkpoint CheckpointDesk::Show(const Record& record) const {
  return ToCheckpoint(*record, book_->wall_now());
}

absl::StatusOr<JobBook::Record> CheckpointDesk::Admit(const v1::CheckpointCaller& caller) const {
  HF_ASSIGN_OR_RETURN(const JobBook::Record job, jobs_->Get(caller.job_id()));
  if (!TokensEqual(caller.job_token(), job->token())) {
    return absl::PermissionDeniedError(absl::StrCat(
        "job_token is not job ", job->id(), "'s; use the worker's own HYPERFRAMES_JOB_TOKEN"));
  }
  if (caller.rank() < 0 || caller.rank() >= job->spec().ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("caller.rank is ", caller.rank(),
                                                   "; the ranks of job ", job->id(), " are 0 to ",
                                                   job->spec().ranks() - 1));
  }
  if (caller.attempt() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("caller.attempt is ", caller.attempt(),
                     "; use the worker's own TORCHELASTIC_RESTART_COUNT"));
  }
  if (caller.attempt() < job->restarts()) return Stale(caller, job->restarts());
  return job;
}

absl::StatusOr<Record> CheckpointDesk::Own(const v1::CheckpointCaller& caller,
                                           const std::string& id) {
  HF_RETURN_IF_ERROR(Admit(caller).status());
  HF_ASSIGN_OR_RETURN(const Record record, book_->Get(id));
  const v1::Checkpoint& checkpoint = record->checkpoint();
  if (checkpoint.job_id() != caller.job_id()) {
    return absl::PermissionDeniedError(absl::StrCat(Called(checkpoint), " is job ",
                                                    checkpoint.job_id(), "'s, and job ",
                                                    caller.job_id(), " has called"));
  }
  if (caller.attempt() < checkpoint.attempt()) return Stale(caller, checkpoint.attempt());
  HF_ASSIGN_OR_RETURN(const Record settled, AbortIfLost(record));
  if (caller.attempt() > checkpoint.attempt() && IsUnderWay(settled->checkpoint().state())) {
    return AbortFor(settled, {"superseded", absl::StrCat("attempt ", caller.attempt(),
                                                         " of the job has called")});
  }
  return settled;
}

absl::StatusOr<Record> CheckpointDesk::AbortIfLost(const Record& record) {
  if (!IsUnderWay(record->checkpoint().state())) return record;
  const absl::StatusOr<JobBook::Record> job = jobs_->Get(record->checkpoint().job_id());
  if (!job.ok() && !absl::IsNotFound(job.status())) return job.status();
  const absl::optional<CheckpointLoss> loss =
      FindLoss(job.ok() ? job->get() : nullptr, record->checkpoint());
  if (!loss.has_value()) return record;
  return AbortFor(record, *loss);
}

absl::StatusOr<Record> CheckpointDesk::AbortFor(const Record& record, const CheckpointLoss& loss) {
  HF_ASSIGN_OR_RETURN(const Record aborted,
                      book_->Update(record->checkpoint().id(), [&](v1::Checkpoint* checkpoint) {
                        checkpoint->set_state(v1::CHECKPOINT_STATE_ABORTED);
                        checkpoint->set_message(Cut(loss.message, 2 * kMaxReasonBytes));
                        return absl::OkStatus();
                      }));
  if (options_.on_abort) options_.on_abort(loss.reason);
  SyncJob(aborted->checkpoint().job_id());
  return aborted;
}

void CheckpointDesk::Progress(const std::string& id, int rank) {
  Life& life = lives_[id];
  life.progress = clock_->Now();
  life.begun.insert(rank);
}

absl::StatusOr<Record> CheckpointDesk::Join(const v1::BeginCheckpointRequest& request,
                                            const Record& current) {
  const v1::Checkpoint& checkpoint = current->checkpoint();
  const v1::CheckpointCaller& caller = request.caller();
  if (checkpoint.job_id() != caller.job_id()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", checkpoint.job_id(), " saves step ", checkpoint.global_step(), " in ",
        checkpoint.directory(), " and has not ended; give each training a directory of its own"));
  }
  if (caller.attempt() < checkpoint.attempt()) return Stale(caller, checkpoint.attempt());
  if (caller.attempt() > checkpoint.attempt()) {
    HF_RETURN_IF_ERROR(
        AbortFor(current, {"superseded",
                           absl::StrCat("attempt ", caller.attempt(), " of the job saves step ",
                                        request.global_step(), " there")})
            .status());
    return Record();
  }
  if (checkpoint.global_step() != request.global_step()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Called(checkpoint), " is ", CheckpointStateName(checkpoint.state()), " in ",
                     checkpoint.directory(), "; step ", request.global_step(),
                     " can be saved when it is committed or aborted"));
  }
  HF_RETURN_IF_ERROR(CheckSameBegin(request, checkpoint));
  // A repeated begin is nothing new.
  if (lives_[checkpoint.id()].begun.count(caller.rank()) == 0) {
    Progress(checkpoint.id(), caller.rank());
  }
  return current;
}

absl::StatusOr<Record> CheckpointDesk::Earlier(const v1::BeginCheckpointRequest& request) {
  const v1::CheckpointCaller& caller = request.caller();
  const Record under_way = book_->UnderWayIn(request.directory());
  if (under_way != nullptr) {
    HF_ASSIGN_OR_RETURN(const Record current, AbortIfLost(under_way));
    if (IsUnderWay(current->checkpoint().state())) return Join(request, current);
  }
  bool newest = true;
  for (const Record& record : book_->List({"", request.directory(), false}, SIZE_MAX)) {
    const v1::Checkpoint& checkpoint = record->checkpoint();
    const bool own = checkpoint.job_id() == caller.job_id();
    if (own && checkpoint.attempt() > caller.attempt()) return Stale(caller, checkpoint.attempt());
    const bool same = own && checkpoint.attempt() == caller.attempt();
    if (checkpoint.state() == v1::CHECKPOINT_STATE_COMMITTED) {
      if (checkpoint.global_step() == request.global_step()) {
        if (same) {
          HF_RETURN_IF_ERROR(CheckSameBegin(request, checkpoint));
          return record;
        }
        return absl::AlreadyExistsError(absl::StrCat(
            "step ", checkpoint.global_step(), " is committed in ", checkpoint.directory(), " as ",
            checkpoint.name(), " (", checkpoint.id(), " of job ", checkpoint.job_id(), ")"));
      }
      if (checkpoint.name() == request.name()) {
        return absl::AlreadyExistsError(absl::StrCat("name '", checkpoint.name(), "' in ",
                                                     checkpoint.directory(), " is step ",
                                                     checkpoint.global_step(), ", committed"));
      }
    } else if (newest && same && checkpoint.global_step() == request.global_step()) {
      // It was aborted before this rank came: the others are gone from it already, and a new one
      // would wait for them in vain. A rank that has begun it once tries anew.
      std::set<int>& begun = lives_[checkpoint.id()].begun;
      if (!begun.empty() && begun.insert(caller.rank()).second) return WasAborted(checkpoint);
    }
    newest = false;
  }
  return Record();
}

absl::StatusOr<v1::Checkpoint> CheckpointDesk::Begin(const v1::BeginCheckpointRequest& request) {
  HF_RETURN_IF_ERROR(CheckBegin(request));
  MutexLock deciding(&deciding_);
  HF_ASSIGN_OR_RETURN(const JobBook::Record job, Admit(request.caller()));
  if (!SavesIn(job->state())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job->id(), " is ", JobStateName(job->state()), "; only a running job saves"));
  }
  if (request.world_size() != job->workers_size()) {
    return absl::InvalidArgumentError(absl::StrCat("world_size ", request.world_size(), ": job ",
                                                   job->id(), " has ", job->workers_size(),
                                                   " ranks"));
  }
  HF_ASSIGN_OR_RETURN(const Record earlier, Earlier(request));
  if (earlier != nullptr) return Show(earlier);
  const std::vector<Record> under_way = book_->UnderWay();
  const auto own = std::count_if(under_way.begin(), under_way.end(), [&](const Record& record) {
    return record->checkpoint().job_id() == job->id();
  });
  if (own >= options_.max_under_way_per_job) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job ", job->id(), " has ", own, " checkpoints under way; wait for one to be committed"));
  }
  v1::Checkpoint checkpoint;
  checkpoint.set_job_id(job->id());
  checkpoint.set_directory(request.directory());
  checkpoint.set_name(request.name());
  checkpoint.set_global_step(request.global_step());
  checkpoint.set_superframe_id(request.superframe_id());
  checkpoint.set_world_size(request.world_size());
  checkpoint.set_topology_hash(request.topology_hash());
  checkpoint.set_plan_id(job->plan_id());
  checkpoint.set_plan_epoch(job->plan_epoch());
  checkpoint.set_attempt(request.caller().attempt());
  HF_ASSIGN_OR_RETURN(const Record begun, book_->Add(checkpoint));
  Progress(begun->checkpoint().id(), request.caller().rank());
  SyncJob(job->id());
  return Show(begun);
}

absl::StatusOr<v1::Checkpoint> CheckpointDesk::Prepare(
    const v1::PrepareCheckpointRequest& request) {
  HF_RETURN_IF_ERROR(CheckShard(request.shard()));
  const int rank = request.caller().rank();
  if (request.shard().rank() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard.rank is ", request.shard().rank(), ", and rank ", rank, " has called"));
  }
  MutexLock deciding(&deciding_);
  HF_ASSIGN_OR_RETURN(const Record record, Own(request.caller(), request.checkpoint_id()));
  const v1::Checkpoint& known = record->checkpoint();
  if (known.state() == v1::CHECKPOINT_STATE_ABORTED) return WasAborted(known);
  const auto earlier =
      std::find_if(known.shards().begin(), known.shards().end(),
                   [rank](const v1::CheckpointShard& shard) { return shard.rank() == rank; });
  if (earlier != known.shards().end()) {
    HF_RETURN_IF_ERROR(CheckSameShard(request.shard(), *earlier));
    return Show(record);
  }
  if (known.ByteSizeLong() + request.shard().ByteSizeLong() > kMaxCheckpointBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard.micro_batches of rank ", rank, " has ", request.shard().micro_batches_size(),
        " ids: with it the checkpoint's ", "description is over ", kMaxCheckpointBytes,
        " bytes; end superframes more ", "often"));
  }
  HF_ASSIGN_OR_RETURN(
      const Record reported, book_->Update(known.id(), [&](v1::Checkpoint* checkpoint) {
        *checkpoint->add_shards() = request.shard();
        std::sort(checkpoint->mutable_shards()->begin(), checkpoint->mutable_shards()->end(),
                  [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
        if (checkpoint->shards_size() == checkpoint->world_size()) {
          checkpoint->set_state(v1::CHECKPOINT_STATE_PREPARED);
        }
        return absl::OkStatus();
      }));
  Progress(known.id(), rank);
  return Show(reported);
}

absl::StatusOr<v1::Checkpoint> CheckpointDesk::Commit(const v1::CommitCheckpointRequest& request) {
  MutexLock deciding(&deciding_);
  HF_ASSIGN_OR_RETURN(const Record record, Own(request.caller(), request.checkpoint_id()));
  const v1::Checkpoint& known = record->checkpoint();
  if (request.caller().rank() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("caller.rank is ", request.caller().rank(), "; rank 0 commits"));
  }
  switch (known.state()) {
    case v1::CHECKPOINT_STATE_COMMITTED:
      return Show(record);
    case v1::CHECKPOINT_STATE_ABORTED:
      return WasAborted(known);
    case v1::CHECKPOINT_STATE_PREPARED:
      break;
    default:
      return absl::FailedPreconditionError(
          absl::StrCat(Called(known), " is ", CheckpointStateName(known.state()),
                       " and not PREPARED: it waits for rank ", MissingRanks(known)));
  }
  HF_ASSIGN_OR_RETURN(const Record committed,
                      book_->Update(known.id(), [](v1::Checkpoint* checkpoint) {
                        checkpoint->set_state(v1::CHECKPOINT_STATE_COMMITTED);
                        return absl::OkStatus();
                      }));
  lives_.erase(known.id());
  const v1::Checkpoint shown = Show(committed);
  if (options_.on_commit) options_.on_commit(absl::Seconds(shown.save_s()));
  SyncJob(known.job_id());
  return shown;
}

absl::StatusOr<v1::Checkpoint> CheckpointDesk::Abort(const v1::AbortCheckpointRequest& request) {
  MutexLock deciding(&deciding_);
  HF_ASSIGN_OR_RETURN(const Record record, Own(request.caller(), request.checkpoint_id()));
  const v1::Checkpoint& known = record->checkpoint();
  if (known.state() == v1::CHECKPOINT_STATE_COMMITTED) {
    return absl::FailedPreconditionError(
        absl::StrCat(Called(known), " is COMMITTED; retire it instead"));
  }
  if (known.state() == v1::CHECKPOINT_STATE_ABORTED) return Show(record);
  const std::string reason = Cut(request.reason(), kMaxReasonBytes);
  HF_ASSIGN_OR_RETURN(
      const Record aborted,
      AbortFor(record, {"by_rank", absl::StrCat("rank ", request.caller().rank(), " gave up",
                                                reason.empty() ? "" : ": ", reason)}));
  return Show(aborted);
}

absl::StatusOr<v1::Checkpoint> CheckpointDesk::Retire(const v1::RetireCheckpointRequest& request) {
  MutexLock deciding(&deciding_);
  HF_RETURN_IF_ERROR(Admit(request.caller()).status());
  HF_ASSIGN_OR_RETURN(const Record record, book_->Get(request.checkpoint_id()));
  const v1::Checkpoint& checkpoint = record->checkpoint();
  if (checkpoint.job_id() != request.caller().job_id()) {
    const absl::StatusOr<JobBook::Record> owner = jobs_->Get(checkpoint.job_id());
    if (owner.ok() && !IsFinalJobState((*owner)->state())) {
      return absl::PermissionDeniedError(absl::StrCat(Called(checkpoint), " is job ",
                                                      checkpoint.job_id(), "'s, which is ",
                                                      JobStateName((*owner)->state())));
    }
  }
  HF_ASSIGN_OR_RETURN(const Record retired, book_->Remove(checkpoint.id()));
  lives_.erase(checkpoint.id());
  return Show(retired);
}

absl::StatusOr<v1::Checkpoint> CheckpointDesk::Watch(const std::string& id,
                                                     v1::CheckpointState known,
                                                     absl::Duration wait) const {
  HF_ASSIGN_OR_RETURN(const Record record, book_->Watch(id, known, wait));
  return Show(record);
}

absl::StatusOr<v1::ListCheckpointsResponse> CheckpointDesk::List(
    const v1::ListCheckpointsRequest& request) const {
  if (request.limit() < 0 || request.limit() > kMaxListed) {
    return absl::InvalidArgumentError(
        absl::StrCat("limit ", request.limit(), ": 0 (reads as 100) to ", kMaxListed));
  }
  const size_t limit = request.limit() == 0 ? 100 : static_cast<size_t>(request.limit());
  v1::ListCheckpointsResponse response;
  size_t bytes = 0;
  for (const Record& record :
       book_->List({request.job_id(), request.directory(), request.committed_only()}, limit)) {
    bytes += record->checkpoint().ByteSizeLong();
    if (bytes > kMaxListBytes && response.checkpoints_size() > 0) break;
    *response.add_checkpoints() = Show(record);
  }
  return response;
}

void CheckpointDesk::AbortTimedOut(const Record& record) {
  const v1::Checkpoint& checkpoint = record->checkpoint();
  const auto life = lives_.find(checkpoint.id());
  // Of an earlier leadership: its ranks could not report while there was no coordinator.
  if (life == lives_.end()) {
    lives_[checkpoint.id()].progress = clock_->Now();
    return;
  }
  if (clock_->Now() - life->second.progress < options_.timeout) return;
  const bool open = checkpoint.state() == v1::CHECKPOINT_STATE_OPEN;
  const absl::Status aborted =
      AbortFor(
          record,
          {"timeout", absl::StrCat("nothing new for ", absl::FormatDuration(options_.timeout),
                                   ": rank ", open ? MissingRanks(checkpoint) : "0",
                                   open ? " has not reported its part" : " has not committed it")})
          .status();
  if (!aborted.ok()) LOG(WARNING) << checkpoint.id() << ": " << aborted;
}

void CheckpointDesk::SyncJob(const std::string& job_id) {
  const std::vector<Record> all = book_->UnderWay();
  const auto open = std::find_if(all.begin(), all.end(), [&](const Record& record) {
    return record->checkpoint().job_id() == job_id;
  });
  const absl::StatusOr<JobBook::Record> job = jobs_->Get(job_id);
  if (!job.ok()) return;
  const v1::JobState wanted =
      open != all.end() ? v1::JOB_STATE_CHECKPOINTING : v1::JOB_STATE_RUNNING;
  if (!RanksRun((*job)->state()) || (*job)->state() == wanted) return;
  const std::vector<Record> last = book_->List({job_id, "", false}, 1);
  const auto updated = jobs_->Update(job_id, [&](v1::JobRecord* record) {
    if (!RanksRun(record->state())) return absl::OkStatus();
    record->set_state(wanted);
    record->set_reason("running");
    record->set_message("its ranks run");
    if (open != all.end()) {
      const v1::Checkpoint& checkpoint = (*open)->checkpoint();
      record->set_reason("checkpointing");
      record->set_message(absl::StrCat("saves step ", checkpoint.global_step(), " (superframe ",
                                       checkpoint.superframe_id(), ") in ",
                                       checkpoint.directory()));
    } else if (!last.empty()) {
      const v1::Checkpoint& checkpoint = last[0]->checkpoint();
      const bool aborted = checkpoint.state() == v1::CHECKPOINT_STATE_ABORTED;
      record->set_message(absl::StrCat(kItsRanksRun, "step ", checkpoint.global_step(),
                                       aborted ? " was not saved: " : " is saved in ",
                                       aborted ? checkpoint.message() : checkpoint.directory()));
    }
    return absl::OkStatus();
  });
  // The next sweep tries again.
  if (!updated.ok()) LOG(WARNING) << job_id << ": " << updated.status();
}

void CheckpointDesk::Sweep() {
  MutexLock deciding(&deciding_);
  for (const Record& record : book_->UnderWay()) {
    const absl::StatusOr<Record> settled = AbortIfLost(record);
    if (!settled.ok()) {
      LOG(WARNING) << record->checkpoint().id() << ": " << settled.status();
    } else if (IsUnderWay((*settled)->checkpoint().state())) {
      AbortTimedOut(*settled);
    }
  }
  for (auto it = lives_.begin(); it != lives_.end();) {
    it = book_->Get(it->first).ok() ? std::next(it) : lives_.erase(it);
  }
  for (const JobBook::Record& job : jobs_->Active()) {
    if (RanksRun(job->state())) SyncJob(job->id());
  }
}

}  // namespace hyperframes
