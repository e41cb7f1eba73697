#include "coordinator/jobs/job_book.h"

#include <glog/logging.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/random_id.h"
#include "common/status_macros.h"
#include "coordinator/jobs/job_spec.h"
#include "coordinator/jobs/job_state.h"

namespace hyperframes {
namespace {

constexpr char kPrefix[] = "jobs/";
constexpr char kAttachedKey[] = "attached:";
constexpr size_t kMaxKeyBytes = 128;
constexpr size_t kMaxMessageBytes = 1024;

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

bool AllReleased(const v1::JobRecord& record) {
  return std::all_of(record.workers().begin(), record.workers().end(),
                     [](const v1::JobWorkerRecord& worker) { return worker.released(); });
}

absl::Status NoJob(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("no job '", id.substr(0, 64),
                                          "' here; `hfctl jobs` lists those that are known"));
}

absl::Status MayBeStopped(const v1::JobRecord& job, bool may_signal) {
  if (IsFinalJobState(job.state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " has already ended: ", JobStateName(job.state())));
  }
  if (job.attached() && !may_signal) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.id(), " was started by torchrun or by hand, which also ends it: end torchrun, ",
        "or give --signal to send SIGTERM to its ranks"));
  }
  return absl::OkStatus();
}

bool SameMessage(const google::protobuf::Message& a, const google::protobuf::Message& b) {
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobBook>> JobBook::Load(Options options, Store* store,
                                                       const Clock* wall_clock) {
  std::unique_ptr<JobBook> book(new JobBook(std::move(options), store, wall_clock));
  HF_RETURN_IF_ERROR(book->Read());
  return book;
}

absl::Status JobBook::Read() {
  const int most = static_cast<int>(2 * (options_.max_unfinished + options_.max_finished) + 1);
  HF_ASSIGN_OR_RETURN(const std::vector<StoreEntry> entries, store_->List(kPrefix, most));
  MutexLock lock(&mutex_);
  last_version_ = options_.first_version;
  for (const StoreEntry& entry : entries) {
    auto record = std::make_shared<v1::JobRecord>();
    if (!record->ParseFromString(entry.value) || kPrefix + record->id() != entry.key) {
      return absl::DataLossError(
          absl::StrCat("the store's record '", entry.key, "' cannot be read; restore a backup"));
    }
    // An explanation that was never stored may have shown a higher version to a watcher.
    record->set_version(std::max(record->version(), options_.first_version));
    last_sequence_ = std::max(last_sequence_, record->sequence());
    last_version_ = std::max(last_version_, record->version());
    by_sequence_[record->sequence()] = record->id();
    jobs_[record->id()] = std::move(record);
  }
  // In order: of several attached jobs with one key the newest has it.
  for (const auto& sequenced : by_sequence_) {
    const std::string& key = jobs_.at(sequenced.second)->idempotency_key();
    if (!key.empty()) by_key_[key] = sequenced.second;
  }
  return absl::OkStatus();
}

absl::StatusOr<JobBook::Record> JobBook::Submit(const v1::JobSpec& spec,
                                                const std::string& idempotency_key) {
  HF_RETURN_IF_ERROR(ValidateJobSpec(spec));
  if (idempotency_key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("idempotency_key has ", idempotency_key.size(),
                                                   " bytes; at most ", kMaxKeyBytes));
  }
  MutexLock writing(&write_mutex_);
  {
    MutexLock lock(&mutex_);
    const auto earlier = by_key_.find(idempotency_key);
    if (!idempotency_key.empty() && earlier != by_key_.end()) {
      HF_ASSIGN_OR_RETURN(Record job, Find(earlier->second));
      if (SameMessage(job->spec(), spec)) return job;
      return absl::AlreadyExistsError(absl::StrCat("idempotency_key '", idempotency_key,
                                                   "' belongs to job ", job->id(),
                                                   ", which has another spec; choose a new key"));
    }
  }
  v1::JobRecord start;
  start.set_state(v1::JOB_STATE_QUEUED);
  start.set_reason("submitted");
  start.set_message("waits for its first look at the cluster");
  return Enter(spec, idempotency_key, std::move(start));
}

absl::StatusOr<JobBook::Record> JobBook::FindAttached(const std::string& key) const {
  MutexLock lock(&mutex_);
  const auto found = by_key_.find(kAttachedKey + key);
  if (found == by_key_.end()) return absl::NotFoundError("no job has attached with that key");
  HF_ASSIGN_OR_RETURN(Record job, Find(found->second));
  if (job->attached() && !IsFinalJobState(job->state())) return job;
  return absl::NotFoundError(absl::StrCat("job ", job->id(), " of that key has ended"));
}

absl::StatusOr<JobBook::Record> JobBook::SubmitAttached(const v1::JobSpec& spec,
                                                        const std::string& key) {
  HF_RETURN_IF_ERROR(ValidateJobSpec(spec));
  v1::JobRecord start;
  start.set_state(v1::JOB_STATE_STARTING);
  start.set_reason("attaching");
  start.set_message(absl::StrCat("0 of ", spec.ranks(), " ranks have attached"));
  start.set_attached(true);
  start.set_attempt(1);
  start.set_started_unix_s(UnixSeconds(wall_clock_->Now()));
  for (int rank = 0; rank < spec.ranks(); ++rank) {
    v1::JobWorkerRecord* worker = start.add_workers();
    worker->set_rank(rank);
    worker->set_released(true);  // It holds no GPU before it attaches.
  }
  MutexLock writing(&write_mutex_);
  return Enter(spec, kAttachedKey + key, std::move(start));
}

absl::StatusOr<JobBook::Record> JobBook::Enter(const v1::JobSpec& spec, const std::string& key,
                                               v1::JobRecord start) {
  auto record = std::make_shared<v1::JobRecord>(std::move(start));
  {
    MutexLock lock(&mutex_);
    size_t unfinished = 0;
    for (const auto& named : jobs_) unfinished += IsFinalJobState(named.second->state()) ? 0 : 1;
    if (unfinished >= options_.max_unfinished) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the queue is full with ", unfinished,
                       " unfinished jobs; try again when some have ended"));
    }
    record->set_sequence(last_sequence_ + 1);
    record->set_version(last_version_ + 1);
  }
  record->set_id(absl::StrCat("job-", RandomHex(6)));
  *record->mutable_spec() = spec;
  record->set_idempotency_key(key);
  record->set_token(RandomHex(16));
  record->set_created_unix_s(UnixSeconds(wall_clock_->Now()));
  record->set_state_since_unix_s(record->created_unix_s());
  for (v1::JobWorkerRecord& worker : *record->mutable_workers()) {
    worker.set_worker_id(absl::StrCat(record->id(), "-", record->attempt(), "-", worker.rank()));
  }
  Transaction transaction;
  transaction.compares.push_back({kPrefix + record->id(), 0});
  transaction.puts.push_back({kPrefix + record->id(), record->SerializeAsString()});
  HF_RETURN_IF_ERROR(store_->Commit(transaction).status());
  Publish(record, {});
  return Record(record);
}

absl::StatusOr<JobBook::Record> JobBook::Find(const std::string& id) const {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return NoJob(id);
  return found->second;
}

absl::StatusOr<JobBook::Record> JobBook::Get(const std::string& id) const {
  MutexLock lock(&mutex_);
  return Find(id);
}

std::vector<JobBook::Record> JobBook::List(size_t limit) const {
  MutexLock lock(&mutex_);
  std::vector<Record> listed;
  for (auto it = by_sequence_.rbegin(); it != by_sequence_.rend() && listed.size() < limit; ++it) {
    listed.push_back(jobs_.at(it->second));
  }
  return listed;
}

std::vector<JobBook::Record> JobBook::Active() const {
  MutexLock lock(&mutex_);
  std::vector<Record> active;
  for (const auto& sequenced : by_sequence_) {
    const Record& record = jobs_.at(sequenced.second);
    if (!IsFinalJobState(record->state()) || !AllReleased(*record)) active.push_back(record);
  }
  return active;
}

std::map<v1::JobState, int64_t> JobBook::CountByState() const {
  MutexLock lock(&mutex_);
  std::map<v1::JobState, int64_t> counts;
  for (const auto& named : jobs_) ++counts[named.second->state()];
  return counts;
}

absl::StatusOr<JobBook::Record> JobBook::Watch(const std::string& id, int64_t after_version,
                                               absl::Duration wait) const {
  MutexLock lock(&mutex_);
  HF_RETURN_IF_ERROR(Find(id).status());
  changed_.WaitFor(&mutex_, wait, [&]() HF_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = jobs_.find(id);
    return stopped_ || found == jobs_.end() || found->second->version() != after_version;
  });
  return Find(id);
}

absl::StatusOr<JobBook::Record> JobBook::Cancel(const std::string& id, bool may_signal) {
  return Update(id, [may_signal](v1::JobRecord* record) -> absl::Status {
    if (record->state() == v1::JOB_STATE_CANCELLED || record->state() == v1::JOB_STATE_STOPPING) {
      return absl::OkStatus();
    }
    HF_RETURN_IF_ERROR(MayBeStopped(*record, may_signal));
    const bool queued = record->state() == v1::JOB_STATE_QUEUED;
    record->set_state(queued ? v1::JOB_STATE_CANCELLED : v1::JOB_STATE_STOPPING);
    record->set_reason("cancelled_by_user");
    record->set_message(queued ? "cancelled in the queue" : "cancelled; its workers are stopped");
    record->set_final_state(v1::JOB_STATE_CANCELLED);
    record->set_final_reason("cancelled_by_user");
    record->set_final_message("cancelled by its user");
    record->set_may_signal(may_signal && record->attached());
    return absl::OkStatus();
  });
}

absl::StatusOr<JobBook::Record> JobBook::Preempt(const std::string& id, bool may_signal) {
  return Update(id, [may_signal](v1::JobRecord* record) -> absl::Status {
    if (record->state() == v1::JOB_STATE_PREEMPTED || record->state() == v1::JOB_STATE_STOPPING) {
      return absl::OkStatus();
    }
    HF_RETURN_IF_ERROR(MayBeStopped(*record, may_signal));
    if (record->state() == v1::JOB_STATE_QUEUED) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", record->id(), " is QUEUED and holds no GPU; `hfctl job cancel ",
                       record->id(), "` takes it out of the queue"));
    }
    record->set_state(v1::JOB_STATE_STOPPING);
    record->set_reason("preempted");
    record->set_message("preempted; its workers have their grace to save and end");
    record->set_final_state(v1::JOB_STATE_PREEMPTED);
    record->set_final_reason("preempted");
    record->set_final_message(
        "its GPUs were given to something else; submit it again to go on from its last checkpoint");
    record->set_may_signal(may_signal && record->attached());
    return absl::OkStatus();
  });
}

absl::StatusOr<JobBook::Record> JobBook::Update(
    const std::string& id, const std::function<absl::Status(v1::JobRecord*)>& edit) {
  MutexLock writing(&write_mutex_);
  HF_ASSIGN_OR_RETURN(const Record before, Get(id));
  auto after = std::make_shared<v1::JobRecord>(*before);
  HF_RETURN_IF_ERROR(edit(after.get()));
  if (SameMessage(*before, *after)) return before;
  if (after->message().size() > kMaxMessageBytes)
    after->mutable_message()->resize(kMaxMessageBytes);
  const bool moved = before->state() != after->state();
  if (moved) {
    if (!LegalJobMove(before->state(), after->state())) {
      return absl::InternalError(absl::StrCat("job ", id, ": no move from ",
                                              JobStateName(before->state()), " to ",
                                              JobStateName(after->state())));
    }
    after->set_state_since_unix_s(UnixSeconds(wall_clock_->Now()));
  }
  {
    MutexLock lock(&mutex_);
    after->set_version(last_version_ + 1);
  }
  std::vector<Record> forgotten;
  if (moved && IsFinalJobState(after->state())) forgotten = Forgettable();
  Transaction transaction;
  transaction.puts.push_back({kPrefix + id, after->SerializeAsString()});
  for (const Record& old : forgotten) {
    transaction.deletes.push_back(kPrefix + old->id());
    for (const std::string& prefix : options_.companion_prefixes) {
      transaction.deletes.push_back(prefix + old->id());
    }
  }
  HF_RETURN_IF_ERROR(store_->Commit(transaction).status());
  if (moved) {
    LOG(INFO) << "job " << id << ": " << JobStateName(before->state()) << " -> "
              << JobStateName(after->state()) << " (" << after->reason() << ")";
  }
  Publish(after, forgotten);
  return Record(after);
}

std::vector<JobBook::Record> JobBook::Forgettable() const {
  MutexLock lock(&mutex_);
  size_t finished = 1;  // The one that is about to.
  for (const auto& named : jobs_) finished += IsFinalJobState(named.second->state()) ? 1 : 0;
  std::vector<Record> forgotten;
  for (auto it = by_sequence_.begin();
       it != by_sequence_.end() && finished - forgotten.size() > options_.max_finished &&
       forgotten.size() < 100;
       ++it) {
    const Record& record = jobs_.at(it->second);
    if (IsFinalJobState(record->state()) && AllReleased(*record)) forgotten.push_back(record);
  }
  return forgotten;
}

void JobBook::Explain(const std::string& id, const std::string& reason,
                      const std::string& message) {
  MutexLock writing(&write_mutex_);
  const absl::StatusOr<Record> before = Get(id);
  if (!before.ok() || ((*before)->reason() == reason && (*before)->message() == message)) return;
  auto after = std::make_shared<v1::JobRecord>(**before);
  after->set_reason(reason);
  after->set_message(message.substr(0, kMaxMessageBytes));
  {
    MutexLock lock(&mutex_);
    after->set_version(last_version_ + 1);
  }
  Publish(after, {});
}

void JobBook::Publish(Record record, const std::vector<Record>& forgotten) {
  {
    MutexLock lock(&mutex_);
    for (const Record& old : forgotten) {
      by_sequence_.erase(old->sequence());
      const auto key = by_key_.find(old->idempotency_key());
      if (key != by_key_.end() && key->second == old->id()) by_key_.erase(key);
      jobs_.erase(old->id());
    }
    last_sequence_ = std::max(last_sequence_, record->sequence());
    last_version_ = std::max(last_version_, record->version());
    by_sequence_[record->sequence()] = record->id();
    if (!record->idempotency_key().empty()) {
      // An ended job of a key that was used again does not take it back by a late report.
      std::string& owner = by_key_[record->idempotency_key()];
      const auto owning = jobs_.find(owner);
      if (owning == jobs_.end() || owning->second->sequence() <= record->sequence()) {
        owner = record->id();
      }
    }
    jobs_[record->id()] = std::move(record);
    changed_.NotifyAll();
  }
  if (on_change_) on_change_();
}

void JobBook::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

v1::Job ToJob(const v1::JobRecord& record, absl::Time wall_now) {
  v1::Job job;
  job.set_id(record.id());
  *job.mutable_spec() = record.spec();
  job.set_state(record.state());
  job.set_reason(record.reason());
  job.set_message(record.message());
  // The wall clock may have been set back meanwhile.
  job.set_age_s(std::max(0.0, UnixSeconds(wall_now) - record.created_unix_s()));
  job.set_state_age_s(std::max(0.0, UnixSeconds(wall_now) - record.state_since_unix_s()));
  for (const v1::JobWorkerRecord& worker : record.workers()) {
    v1::JobWorker* out = job.add_workers();
    out->set_rank(worker.rank());
    out->set_node(worker.node());
    out->set_gpu(worker.gpu());
    *out->mutable_report() = worker.report();
  }
  job.set_version(record.version());
  job.set_restarts(record.restarts());
  job.set_attempt(record.attempt());
  job.set_attached(record.attached());
  for (const v1::JobAttemptRecord& earlier : record.attempts()) {
    v1::JobAttempt* out = job.add_attempts();
    out->set_attempt(earlier.attempt());
    out->set_reason(earlier.reason());
    out->set_message(earlier.message());
    out->set_ended_age_s(std::max(0.0, UnixSeconds(wall_now) - earlier.ended_unix_s()));
    out->set_steps(earlier.steps());
  }
  job.set_plan_id(record.plan_id());
  job.set_plan_epoch(record.plan_epoch());
  return job;
}

}  // namespace hyperframes
