#include "client/cli/wait_for_job.h"

#include "absl/strings/str_cat.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

std::string StateText(const v1::Job& job) {
  std::string text = JobStateName(job.state());
  if (!job.message().empty()) absl::StrAppend(&text, ": ", job.message());
  return text;
}

}  // namespace

std::string OutcomeText(const v1::Job& job) {
  return absl::StrCat(job.id(), " ", Printable(StateText(job)));
}

void PrintOutcome(const v1::Job& job, std::ostream* out) { *out << OutcomeText(job) << "\n"; }

absl::StatusOr<int> WaitForJob(CommandLine* line, Client* client, const std::string& id) {
  Progress progress(absl::StrCat("waiting for ", id), Progress::ForPeople());
  absl::StatusOr<v1::Job> job = absl::UnknownError("not asked yet");
  {
    const Watched watched(&progress);
    job = client->WaitJob(id, line->timeout(absl::InfiniteDuration()),
                          [&progress](const v1::Job& now) { progress.SetDetail(StateText(now)); });
  }
  HF_RETURN_IF_ERROR(job.status());
  if (line->json()) {
    HF_RETURN_IF_ERROR(line->PrintJson(*job));
  } else {
    PrintOutcome(*job, line->out());
  }
  return job->state() == v1::JOB_STATE_SUCCEEDED ? kExitOk : kExitFailed;
}

}  // namespace hyperframes
