#include <iostream>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/wait_for_job.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Table::Align kRight = Table::Align::kRight;

std::string HowWorkerEnded(const v1::WorkerReport& report) {
  if (report.state() != v1::WORKER_STATE_EXITED) return "";
  if (report.term_signal() != 0) return absl::StrCat("signal ", report.term_signal());
  return absl::StrCat("exit code ", report.exit_code());
}

void PrintField(std::ostream* out, const std::string& name, const std::string& value) {
  if (value.empty()) return;
  const std::string label = name + ":";
  *out << label << std::string(label.size() < 12 ? 12 - label.size() : 1, ' ') << Printable(value)
       << "\n";
}

void PrintWorkers(const v1::Job& job, std::ostream* out) {
  if (job.workers().empty()) return;
  *out << "\n";
  Table table({{"RANK", kRight},
               {"NODE"},
               {"GPU"},
               {"WORKER"},
               {"STATE"},
               {"PID", kRight},
               {"STEPS", kRight},
               {"ACTIVATIONS", kRight},
               {"PEAK", kRight},
               {"ENDED"},
               {"MESSAGE"}});
  for (const v1::JobWorker& worker : job.workers()) {
    const v1::WorkerReport& report = worker.report();
    table.AddRow(
        {absl::StrCat(worker.rank()), worker.node(), worker.gpu(), report.worker_id(),
         WorkerStateText(report.state()), report.pid() == 0 ? "" : absl::StrCat(report.pid()),
         absl::StrCat(report.steps()), FormatBytes(report.activation_bytes()),
         FormatBytes(report.activation_peak_bytes()), HowWorkerEnded(report), report.message()});
  }
  table.Print(out);
}

void PrintAttempts(const v1::Job& job, std::ostream* out) {
  if (job.attempts().empty()) return;
  *out << "\nearlier attempts (`hfctl job logs " << Printable(job.id()) << " --attempt N`):\n";
  Table table({{"ATTEMPT", kRight}, {"ENDED", kRight}, {"STEPS", kRight}, {"REASON"}, {"CAUSE"}});
  for (const v1::JobAttempt& attempt : job.attempts()) {
    table.AddRow({absl::StrCat(attempt.attempt()), AgeText(attempt.ended_age_s()),
                  absl::StrCat(attempt.steps()), attempt.reason(), attempt.message()});
  }
  table.Print(out);
}

// "a, b": where its ranks are.
std::string NodesOf(const v1::Job& job) {
  std::set<std::string> nodes;
  for (const v1::JobWorker& worker : job.workers()) nodes.insert(worker.node());
  return absl::StrJoin(nodes, ", ");
}

// "20MiB on node b": where other nodes than a rank's own hold its frames.
std::string BorrowedElsewhere(const v1::FramePlan& plan) {
  std::map<std::string, Bytes> bytes;
  for (const v1::RankPlan& rank : plan.ranks()) {
    for (const v1::LeaseNeed& lease : rank.leases()) {
      if (lease.staging_bytes() > 0) bytes[lease.node()] += lease.bytes();
    }
  }
  return absl::StrJoin(bytes, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, FormatBytes(entry.second), " on node ", entry.first);
  });
}

void PrintJob(const v1::Job& job, const v1::FramePlan& plan, std::ostream* out) {
  PrintField(out, "id", job.id());
  PrintField(out, "name", job.spec().name());
  PrintField(out, "state",
             absl::StrCat(JobStateName(job.state()), " for ", AgeText(job.state_age_s())));
  PrintField(out, "reason", job.reason());
  PrintField(out, "message", job.message());
  PrintField(out, "age", AgeText(job.age_s()));
  PrintField(out, "ranks", absl::StrCat(job.spec().ranks()));
  PrintField(out, "placement",
             job.spec().placement() == v1::JobSpec::PLACEMENT_SPREAD ? "spread" : "pack");
  if (job.attempt() > 1) PrintField(out, "attempt", absl::StrCat(job.attempt()));
  if (job.attached()) PrintField(out, "started by", "torchrun or by hand: it attached itself");
  if (job.spec().max_restarts() > 0) {
    PrintField(out, "restarts",
               absl::StrCat(job.restarts(), " of at most ", job.spec().max_restarts()));
  }
  if (job.spec().time_limit_s() > 0) {
    PrintField(out, "time limit", absl::FormatDuration(absl::Seconds(job.spec().time_limit_s())));
  }
  PrintField(out, "command", absl::StrJoin(job.spec().command(), " "));
  PrintField(out, "directory", job.spec().working_directory());
  if (!job.plan_id().empty()) {
    PrintField(out, "plan", absl::StrCat(job.plan_id(), " epoch ", job.plan_epoch()));
  }
  PrintField(out, "borrows", BorrowedElsewhere(plan));
  PrintWorkers(job, out);
  PrintAttempts(job, out);
}

}  // namespace

absl::StatusOr<v1::Job> FetchJob(Client* client, const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  return client->GetJob(request);
}

absl::StatusOr<int> RunJobs(CommandLine* line) {
  int64_t limit = 100;
  line->config()->AddInt(&limit, "limit", 1, 1000, "newest jobs to show");
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(0, 0));
  if (!run) return kExitOk;
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  v1::ListJobsRequest request;
  request.set_limit(static_cast<int32_t>(limit));
  HF_ASSIGN_OR_RETURN(const v1::ListJobsResponse response, client->ListJobs(request));
  if (line->json()) {
    HF_RETURN_IF_ERROR(line->PrintJson(response));
    return kExitOk;
  }
  Table table({{"ID"},
               {"NAME"},
               {"STATE"},
               {"RANKS", kRight},
               {"NODES"},
               {"RESTARTS", kRight},
               {"AGE", kRight},
               {"REASON"},
               {"MESSAGE"}});
  for (const v1::Job& job : response.jobs()) {
    table.AddRow({job.id(), job.spec().name(), JobStateName(job.state()),
                  absl::StrCat(job.spec().ranks()), NodesOf(job), absl::StrCat(job.restarts()),
                  AgeText(job.age_s()), job.reason(), job.message()});
  }
  if (response.jobs().empty()) {
    *line->out() << "no jobs yet; `hfctl submit -- COMMAND` queues one\n";
    return kExitOk;
  }
  table.Print(line->out());
  return kExitOk;
}

absl::StatusOr<int> RunJobDescribe(CommandLine* line) {
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(1, 1));
  if (!run) return kExitOk;
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  HF_ASSIGN_OR_RETURN(const v1::Job job, FetchJob(client.get(), line->positional()[0]));
  if (line->json()) {
    HF_RETURN_IF_ERROR(line->PrintJson(job));
    return kExitOk;
  }
  v1::GetPlanRequest request;
  request.set_job_id(job.id());
  absl::StatusOr<v1::FramePlan> plan = v1::FramePlan();
  if (!job.plan_id().empty()) plan = client->GetPlan(request);
  // A job is described all the same where its plan is gone.
  PrintJob(job, plan.ok() ? *plan : v1::FramePlan(), line->out());
  return kExitOk;
}

absl::StatusOr<int> RunJobWait(CommandLine* line) {
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(1, 1));
  if (!run) return kExitOk;
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  return WaitForJob(line, client.get(), line->positional()[0]);
}

namespace {

// Cancel and preempt: one request with an id and --signal, one job back.
template <typename Request>
absl::StatusOr<int> StopJob(CommandLine* line,
                            absl::StatusOr<v1::Job> (Client::*call)(const Request&,
                                                                    absl::Duration)) {
  bool signal = false;
  line->config()->AddBool(&signal, "signal",
                          "SIGTERM to the ranks of a job that torchrun has started");
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(1, 1));
  if (!run) return kExitOk;
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  Request request;
  request.set_id(line->positional()[0]);
  request.set_signal(signal);
  HF_ASSIGN_OR_RETURN(const v1::Job job, (client.get()->*call)(request, kDefaultTimeout));
  if (line->json()) {
    HF_RETURN_IF_ERROR(line->PrintJson(job));
  } else {
    PrintOutcome(job, line->out());
  }
  return kExitOk;
}

}  // namespace

absl::StatusOr<int> RunJobCancel(CommandLine* line) {
  return StopJob<v1::CancelJobRequest>(line, &Client::CancelJob);
}

absl::StatusOr<int> RunJobPreempt(CommandLine* line) {
  return StopJob<v1::PreemptJobRequest>(line, &Client::PreemptJob);
}

}  // namespace hyperframes
