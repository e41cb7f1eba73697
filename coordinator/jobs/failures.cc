#include "coordinator/jobs/failures.h"

#include <signal.h>

#include <algorithm>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

constexpr double kReportJitterSeconds = 0.02;

int Consequence(const v1::WorkerReport& report) {
  const bool gone = report.attached() && report.exit_code() < 0;  // As killed: nobody saw how.
  const bool unknown = report.exit_code() < 0 && report.message() != kLostWorker && !gone;
  if (report.term_signal() == SIGTERM || unknown) return 2;
  return report.term_signal() != 0 || gone ? 0 : 1;
}

bool AsksForNoRestart(const v1::JobWorkerRecord& worker) {
  return Failed(worker) && worker.report().term_signal() == 0 &&
         worker.report().exit_code() == kDoNotRestartExitCode;
}

}  // namespace

bool Failed(const v1::JobWorkerRecord& worker) {
  return worker.report().state() == v1::WORKER_STATE_EXITED &&
         (worker.report().exit_code() != 0 || worker.report().term_signal() != 0);
}

const v1::JobWorkerRecord* FirstFailed(const v1::JobRecord& job) {
  const v1::JobWorkerRecord* earliest = nullptr;
  const auto order = [](const v1::JobWorkerRecord& worker) {
    return std::make_tuple(worker.ended_unix_s(), Consequence(worker.report()), worker.rank());
  };
  for (const v1::JobWorkerRecord& worker : job.workers()) {
    if (!Failed(worker)) continue;
    if (earliest == nullptr || order(worker) < order(*earliest)) earliest = &worker;
  }
  if (earliest == nullptr) return nullptr;
  const v1::JobWorkerRecord* first = earliest;
  for (const v1::JobWorkerRecord& worker : job.workers()) {
    if (Failed(worker) && worker.node() != earliest->node() &&
        worker.ended_unix_s() - earliest->ended_unix_s() <= kReportJitterSeconds &&
        Consequence(worker.report()) < Consequence(first->report())) {
      first = &worker;
    }
  }
  return first;
}

std::string FailureReason(const v1::JobWorkerRecord& worker) {
  if (worker.report().message() == kLostWorker) return kLostWorker;
  return worker.report().term_signal() != 0 ? "signal" : "exit_code";
}

bool IsFailureReason(const std::string& reason) {
  return reason == "exit_code" || reason == "signal" || reason == kLostWorker;
}

std::string FailureText(const v1::JobRecord& job, const v1::JobWorkerRecord& worker) {
  const v1::WorkerReport& report = worker.report();
  std::string text = absl::StrCat("rank ", worker.rank(), " on node ", worker.node());
  if (report.message() == kLostWorker) {
    absl::StrAppend(&text, " was lost: its node is gone, or its agent does not know it any more");
  } else if (report.attached() && report.exit_code() < 0) {
    absl::StrAppend(&text, " disappeared");
  } else if (report.term_signal() != 0) {
    absl::StrAppend(&text, " was ended by signal ", report.term_signal());
  } else {
    absl::StrAppend(&text, " exited with code ", report.exit_code());
  }
  // Agents tell code and signal in words, too: said once is enough.
  if (!report.message().empty() && report.message() != kLostWorker &&
      !absl::StartsWith(report.message(), "exit code") &&
      !absl::StartsWith(report.message(), "ended by signal")) {
    absl::StrAppend(&text, ": ", report.message());
  }
  const int budget = job.spec().max_restarts();
  if (budget == 0) return text;
  if (std::any_of(job.workers().begin(), job.workers().end(), AsksForNoRestart)) {
    absl::StrAppend(&text, "; exit code ", kDoNotRestartExitCode, " asks for no restart");
  } else if (job.restarts() >= budget) {
    absl::StrAppend(&text, "; its budget of ", budget, budget == 1 ? " restart" : " restarts",
                    " is used up");
  }
  return text;
}

bool MayRestart(const v1::JobRecord& job) {
  return job.restarts() < job.spec().max_restarts() &&
         std::none_of(job.workers().begin(), job.workers().end(), AsksForNoRestart);
}

bool EndedWithoutStep(const v1::JobRecord& job) {
  return std::all_of(
      job.workers().begin(), job.workers().end(),
      [](const v1::JobWorkerRecord& worker) { return worker.report().steps() == 0; });
}

}  // namespace hyperframes
