#include "coordinator/checkpoints/checkpoint_book.h"

#include <glog/logging.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/random_id.h"
#include "common/status_macros.h"
#include "coordinator/checkpoints/checkpoint_state.h"

namespace hyperframes {
namespace {

constexpr char kPrefix[] = "checkpoints/";
constexpr int kMaxRecords = 1000000;
constexpr size_t kMostNamedRanks = 20;

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

// Where a test may end the process around the transaction that leads to `state`.
void BeforeTransaction(v1::CheckpointState state) {
  if (state == v1::CHECKPOINT_STATE_COMMITTED) return Failpoint("checkpoint_before_commit");
  if (state == v1::CHECKPOINT_STATE_ABORTED) return Failpoint("checkpoint_before_abort");
  Failpoint("checkpoint_before_prepare");
}

void AfterTransaction(v1::CheckpointState state) {
  if (state == v1::CHECKPOINT_STATE_COMMITTED) return Failpoint("checkpoint_after_commit");
  if (state == v1::CHECKPOINT_STATE_ABORTED) return Failpoint("checkpoint_after_abort");
  Failpoint("checkpoint_after_prepare");
}

std::string Key(const v1::CheckpointRecord& record) { return kPrefix + record.checkpoint().id(); }

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointBook>> CheckpointBook::Load(Options options, Store* store,
                                                                     const Clock* wall_clock) {
  std::unique_ptr<CheckpointBook> book(new CheckpointBook(options, store, wall_clock));
  HF_RETURN_IF_ERROR(book->Read());
  return book;
}

absl::Status CheckpointBook::Read() {
  HF_ASSIGN_OR_RETURN(const std::vector<StoreEntry> entries, store_->List(kPrefix, kMaxRecords));
  MutexLock lock(&mutex_);
  for (const StoreEntry& entry : entries) {
    auto record = std::make_shared<v1::CheckpointRecord>();
    if (!record->ParseFromString(entry.value) || Key(*record) != entry.key) {
      return absl::DataLossError(
          absl::StrCat("the store's record '", entry.key, "' cannot be read; restore a backup"));
    }
    Insert(std::move(record));
  }
  return absl::OkStatus();
}

void CheckpointBook::Insert(Record record) {
  const v1::Checkpoint& checkpoint = record->checkpoint();
  const int64_t sequence = record->sequence();
  const auto earlier = records_.find(checkpoint.id());
  if (earlier != records_.end()) Erase(v1::CheckpointRecord(*earlier->second));
  last_sequence_ = std::max(last_sequence_, sequence);
  by_sequence_[sequence] = checkpoint.id();
  if (IsUnderWay(checkpoint.state())) under_way_[checkpoint.directory()] = checkpoint.id();
  if (checkpoint.state() == v1::CHECKPOINT_STATE_ABORTED) aborted_[sequence] = checkpoint.id();
  if (checkpoint.state() == v1::CHECKPOINT_STATE_COMMITTED) {
    committed_[checkpoint.directory()][sequence] = checkpoint.id();
  }
  records_[checkpoint.id()] = std::move(record);
}

void CheckpointBook::Erase(const v1::CheckpointRecord& record) {
  const v1::Checkpoint& checkpoint = record.checkpoint();
  by_sequence_.erase(record.sequence());
  aborted_.erase(record.sequence());
  const auto open = under_way_.find(checkpoint.directory());
  if (open != under_way_.end() && open->second == checkpoint.id()) under_way_.erase(open);
  const auto committed = committed_.find(checkpoint.directory());
  if (committed != committed_.end()) {
    committed->second.erase(record.sequence());
    if (committed->second.empty()) committed_.erase(committed);
  }
  records_.erase(checkpoint.id());
}

void CheckpointBook::Publish(const Record& record, const std::vector<Record>& forgotten) {
  MutexLock lock(&mutex_);
  for (const Record& old : forgotten) Erase(*old);
  if (record != nullptr) Insert(record);
  changed_.NotifyAll();
}

absl::Status CheckpointBook::CheckRoom(const std::string& directory) const {
  MutexLock lock(&mutex_);
  const auto open = under_way_.find(directory);
  if (open != under_way_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", open->second, " is under way in ", directory));
  }
  if (committed_.count(directory) > 0) return absl::OkStatus();
  size_t taken = committed_.size();
  for (const auto& named : under_way_) taken += committed_.count(named.first) > 0 ? 0 : 1;
  if (taken < options_.max_committed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(taken, " directories have checkpoints, and the newest of each is never ",
                   "forgotten; save into one of them, or run a coordinator of your own"));
}

absl::StatusOr<CheckpointBook::Record> CheckpointBook::Add(const v1::Checkpoint& checkpoint) {
  MutexLock writing(&write_mutex_);
  HF_RETURN_IF_ERROR(CheckRoom(checkpoint.directory()));
  auto record = std::make_shared<v1::CheckpointRecord>();
  v1::Checkpoint* added = record->mutable_checkpoint();
  *added = checkpoint;
  added->set_id(absl::StrCat("ckpt-", RandomHex(8)));
  added->set_state(v1::CHECKPOINT_STATE_OPEN);
  added->clear_shards();
  added->clear_message();
  added->clear_age_s();
  added->clear_save_s();
  record->set_begun_unix_s(UnixSeconds(wall_clock_->Now()));
  {
    MutexLock lock(&mutex_);
    record->set_sequence(last_sequence_ + 1);
  }
  Transaction transaction;
  transaction.compares.push_back({Key(*record), 0});
  transaction.puts.push_back({Key(*record), record->SerializeAsString()});
  Failpoint("checkpoint_before_begin");
  HF_RETURN_IF_ERROR(store_->Commit(transaction).status());
  Failpoint("checkpoint_after_begin");
  Publish(record, {});
  return Record(record);
}

absl::StatusOr<CheckpointBook::Record> CheckpointBook::Update(
    const std::string& id, const std::function<absl::Status(v1::Checkpoint*)>& edit) {
  MutexLock writing(&write_mutex_);
  HF_ASSIGN_OR_RETURN(const Record before, Get(id));
  auto after = std::make_shared<v1::CheckpointRecord>(*before);
  HF_RETURN_IF_ERROR(edit(after->mutable_checkpoint()));
  if (google::protobuf::util::MessageDifferencer::Equals(*before, *after)) return before;
  const v1::CheckpointState from = before->checkpoint().state();
  const v1::CheckpointState to = after->checkpoint().state();
  const bool moved = from != to;
  if (moved && !LegalCheckpointMove(from, to)) {
    return absl::InternalError(absl::StrCat("checkpoint ", id, ": no move from ",
                                            CheckpointStateName(from), " to ",
                                            CheckpointStateName(to)));
  }
  if (moved && to == v1::CHECKPOINT_STATE_COMMITTED) {
    after->set_committed_unix_s(UnixSeconds(wall_clock_->Now()));
  }
  std::vector<Record> forgotten;
  if (moved) forgotten = Forgettable(after->checkpoint().directory(), to);
  Transaction transaction;
  transaction.puts.push_back({Key(*after), after->SerializeAsString()});
  for (const Record& old : forgotten) transaction.deletes.push_back(Key(*old));
  BeforeTransaction(to);
  HF_RETURN_IF_ERROR(store_->Commit(transaction).status());
  AfterTransaction(to);
  if (moved) {
    LOG(INFO) << "checkpoint " << id << " of step " << after->checkpoint().global_step() << ": "
              << CheckpointStateName(from) << " -> " << CheckpointStateName(to) << " "
              << after->checkpoint().message();
  }
  Publish(after, forgotten);
  return Record(after);
}

std::vector<CheckpointBook::Record> CheckpointBook::Forgettable(const std::string& directory,
                                                                v1::CheckpointState state) const {
  MutexLock lock(&mutex_);
  std::vector<Record> forgotten;
  if (state == v1::CHECKPOINT_STATE_ABORTED && aborted_.size() >= options_.max_aborted) {
    const size_t surplus = aborted_.size() + 1 - options_.max_aborted;
    for (auto it = aborted_.begin(); it != aborted_.end() && forgotten.size() < surplus; ++it) {
      forgotten.push_back(records_.at(it->second));
    }
  }
  if (state != v1::CHECKPOINT_STATE_COMMITTED) return forgotten;
  size_t committed = 1;  // The one that is about to be.
  for (const auto& named : committed_) committed += named.second.size();
  const auto here = committed_.find(directory);
  const size_t own = here == committed_.end() ? 0 : here->second.size();
  // All of this directory may go: the one that is about to be is its newest.
  if (own > 0 && own >= options_.max_committed_per_directory) {
    forgotten.push_back(records_.at(here->second.begin()->second));
  }
  for (auto it = by_sequence_.begin();
       it != by_sequence_.end() && committed - forgotten.size() > options_.max_committed; ++it) {
    const Record& old = records_.at(it->second);
    if (old->checkpoint().state() != v1::CHECKPOINT_STATE_COMMITTED) continue;
    const bool superseded = old->checkpoint().directory() == directory || !IsNewestCommitted(*old);
    if (superseded && std::find(forgotten.begin(), forgotten.end(), old) == forgotten.end()) {
      forgotten.push_back(old);
    }
  }
  return forgotten;
}

bool CheckpointBook::IsNewestCommitted(const v1::CheckpointRecord& record) const {
  const auto here = committed_.find(record.checkpoint().directory());
  return here != committed_.end() && here->second.rbegin()->first == record.sequence();
}

absl::StatusOr<CheckpointBook::Record> CheckpointBook::Remove(const std::string& id) {
  MutexLock writing(&write_mutex_);
  Record record;
  {
    MutexLock lock(&mutex_);
    HF_ASSIGN_OR_RETURN(record, Find(id));
    const v1::Checkpoint& checkpoint = record->checkpoint();
    if (IsUnderWay(checkpoint.state())) {
      return absl::FailedPreconditionError(
          absl::StrCat("checkpoint ", id, " of step ", checkpoint.global_step(), " is ",
                       CheckpointStateName(checkpoint.state()), "; abort it first"));
    }
    if (IsNewestCommitted(*record)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "checkpoint ", id, " of step ", checkpoint.global_step(), " is the newest committed in ",
          checkpoint.directory(), ": what a restart resumes from is kept"));
    }
  }
  Transaction transaction;
  transaction.deletes.push_back(kPrefix + id);
  Failpoint("checkpoint_before_retire");
  HF_RETURN_IF_ERROR(store_->Commit(transaction).status());
  Failpoint("checkpoint_after_retire");
  Publish(nullptr, {record});
  return record;
}

absl::StatusOr<CheckpointBook::Record> CheckpointBook::Find(const std::string& id) const {
  const auto found = records_.find(id);
  if (found == records_.end()) {
    return absl::NotFoundError(
        absl::StrCat("no checkpoint '", id.substr(0, 64),
                     "' here (retired ones are forgotten); `hfctl checkpoints --all` lists them"));
  }
  return found->second;
}

absl::StatusOr<CheckpointBook::Record> CheckpointBook::Get(const std::string& id) const {
  MutexLock lock(&mutex_);
  return Find(id);
}

std::vector<CheckpointBook::Record> CheckpointBook::List(const Filter& filter, size_t limit) const {
  MutexLock lock(&mutex_);
  std::vector<Record> listed;
  for (auto it = by_sequence_.rbegin(); it != by_sequence_.rend() && listed.size() < limit; ++it) {
    const Record& record = records_.at(it->second);
    const v1::Checkpoint& checkpoint = record->checkpoint();
    if (!filter.job_id.empty() && checkpoint.job_id() != filter.job_id) continue;
    if (!filter.directory.empty() && checkpoint.directory() != filter.directory) continue;
    if (filter.committed_only && checkpoint.state() != v1::CHECKPOINT_STATE_COMMITTED) continue;
    listed.push_back(record);
  }
  return listed;
}

std::vector<CheckpointBook::Record> CheckpointBook::UnderWay() const {
  MutexLock lock(&mutex_);
  std::vector<Record> found;
  for (const auto& named : under_way_) found.push_back(records_.at(named.second));
  std::sort(found.begin(), found.end(),
            [](const Record& a, const Record& b) { return a->sequence() < b->sequence(); });
  return found;
}

CheckpointBook::Record CheckpointBook::UnderWayIn(const std::string& directory) const {
  MutexLock lock(&mutex_);
  const auto found = under_way_.find(directory);
  return found == under_way_.end() ? nullptr : records_.at(found->second);
}

std::map<v1::CheckpointState, int64_t> CheckpointBook::CountByState() const {
  MutexLock lock(&mutex_);
  std::map<v1::CheckpointState, int64_t> counts;
  for (const auto& named : records_) ++counts[named.second->checkpoint().state()];
  return counts;
}

absl::StatusOr<CheckpointBook::Record> CheckpointBook::Watch(const std::string& id,
                                                             v1::CheckpointState known,
                                                             absl::Duration wait) const {
  MutexLock lock(&mutex_);
  HF_RETURN_IF_ERROR(Find(id).status());
  changed_.WaitFor(&mutex_, wait, [&]() HF_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = records_.find(id);
    return stopped_ || found == records_.end() || found->second->checkpoint().state() != known;
  });
  return Find(id);
}

void CheckpointBook::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

std::string MissingRanks(const v1::Checkpoint& checkpoint) {
  std::set<int> present;
  for (const v1::CheckpointShard& shard : checkpoint.shards()) present.insert(shard.rank());
  std::string missing;
  size_t count = 0;
  for (int rank = 0; rank < checkpoint.world_size(); ++rank) {
    if (present.count(rank) > 0 || ++count > kMostNamedRanks) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
  }
  if (count > kMostNamedRanks) absl::StrAppend(&missing, " and ", count - kMostNamedRanks, " more");
  return missing;
}

v1::Checkpoint ToCheckpoint(const v1::CheckpointRecord& record, absl::Time wall_now) {
  v1::Checkpoint checkpoint = record.checkpoint();
  // The wall clock may have been set back meanwhile.
  checkpoint.set_age_s(std::max(0.0, UnixSeconds(wall_now) - record.begun_unix_s()));
  if (record.committed_unix_s() > 0) {
    checkpoint.set_save_s(std::max(1e-6, record.committed_unix_s() - record.begun_unix_s()));
  }
  if (checkpoint.state() == v1::CHECKPOINT_STATE_OPEN) {
    checkpoint.set_message(absl::StrCat("waits for rank ", MissingRanks(checkpoint)));
  }
  return checkpoint;
}

}  // namespace hyperframes
