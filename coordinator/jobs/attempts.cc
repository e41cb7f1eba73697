#include "coordinator/jobs/attempts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace hyperframes {

void KeepAttempt(const std::string& reason, const std::string& cause, absl::Time wall_now,
                 v1::JobRecord* record) {
  v1::JobAttemptRecord* kept = record->add_attempts();
  kept->set_attempt(record->attempt());
  kept->set_reason(reason);
  kept->set_message(cause);
  kept->set_ended_unix_s(absl::ToDoubleSeconds(wall_now - absl::UnixEpoch()));
  for (const v1::JobWorkerRecord& worker : record->workers()) {
    const int runs = kept->runs_size();
    if (runs == 0 || kept->runs(runs - 1).node() != worker.node()) {
      kept->add_runs()->set_node(worker.node());
    }
    v1::JobAttemptRecord::Run* run = kept->mutable_runs(kept->runs_size() - 1);
    run->set_ranks(run->ranks() + 1);
    kept->set_steps(std::max(kept->steps(), worker.report().steps()));
  }
  const int surplus = record->attempts_size() - kMostAttemptsKept;
  if (surplus > 0) record->mutable_attempts()->DeleteSubrange(0, surplus);
}

absl::StatusOr<LogPlace> FindLog(const v1::JobRecord& record, int attempt, int rank) {
  if (rank < 0 || rank >= record.spec().ranks()) {
    return absl::InvalidArgumentError(absl::StrCat("job ", record.id(), " has no rank ", rank,
                                                   "; its ranks are 0 to ",
                                                   record.spec().ranks() - 1));
  }
  LogPlace place;
  if (attempt == 0 || attempt == record.attempt()) {
    if (rank >= record.workers_size()) return place;
    const v1::JobWorkerRecord& worker = record.workers(rank);
    if (worker.report().state() == v1::WORKER_STATE_UNSPECIFIED) return place;
    place.node = worker.node();
    place.worker_id = worker.worker_id();
    return place;
  }
  std::string known;
  for (const v1::JobAttemptRecord& earlier : record.attempts()) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", earlier.attempt());
    if (earlier.attempt() != attempt) continue;
    int left = rank;
    for (const v1::JobAttemptRecord::Run& run : earlier.runs()) {
      if (left < run.ranks()) place.node = run.node();
      if (left < run.ranks()) break;
      left -= run.ranks();
    }
    place.worker_id = absl::StrCat(record.id(), "-", attempt, "-", rank);
    return place;
  }
  return absl::NotFoundError(
      absl::StrCat("job ", record.id(), " has no log of attempt ", attempt, "; ",
                   known.empty() ? "no earlier one is" : absl::StrCat("of earlier ones ", known),
                   " kept, and ", record.attempt(), " is the newest"));
}

}  // namespace hyperframes
