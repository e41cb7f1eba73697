#include <poll.h>
#include <unistd.h>

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/commands.h"
#include "client/cli/wait_for_job.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// False once nobody reads what is printed (`| head`): a write would tell as well, but the next line
// may be an hour off.
bool SomebodyReads() {
  pollfd out = {STDOUT_FILENO, 0, 0};
  return poll(&out, 1, /*timeout_ms=*/0) <= 0 || (out.revents & (POLLERR | POLLHUP)) == 0;
}

absl::StatusOr<int64_t> PreviousAttempt(Client* client, const std::string& id) {
  HF_ASSIGN_OR_RETURN(const v1::Job job, FetchJob(client, id));
  if (!job.attempts().empty()) return job.attempts(job.attempts_size() - 1).attempt();
  return absl::NotFoundError(absl::StrCat(
      "job ", id.substr(0, 64), " has no earlier attempt: ", job.restarts(), " restarts so far"));
}

}  // namespace

absl::StatusOr<int> RunJobLogs(CommandLine* line) {
  int64_t rank = 0, attempt = 0;
  bool follow = false, previous = false;
  line->config()->AddInt(&rank, "rank", 0, INT32_MAX, "whose output");
  line->config()->AddInt(&attempt, "attempt", 0, INT32_MAX, "of a restarted job; 0: the newest");
  line->config()->AddBool(&previous, "previous", "of the attempt before the newest");
  line->config()->AddBool(&follow, "follow", "go on until the job has ended");
  line->config()->AddShort('f', "follow");
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(1, 1));
  if (!run) return kExitOk;
  if (previous && attempt != 0) {
    return absl::InvalidArgumentError("--previous and --attempt: give one of them");
  }
  const std::string& id = line->positional()[0];
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  if (previous) {
    HF_ASSIGN_OR_RETURN(attempt, PreviousAttempt(client.get(), id));
  }
  std::ostream* const out = line->out();
  bool any = false, gone = false;
  const auto sink = [&](const std::string& data) {
    any = any || !data.empty();
    out->write(data.data(), static_cast<std::streamsize>(data.size()));
    out->flush();
    gone = !out->good() || !SomebodyReads();
    return !gone;
  };
  const absl::Duration timeout = line->timeout(absl::InfiniteDuration());
  HF_RETURN_IF_ERROR(client->FollowLog(id, static_cast<int>(rank), /*offset=*/0, follow, timeout,
                                       sink, static_cast<int>(attempt)));
  if (!any && !gone) {
    // Silence would leave open whether the job waits or has nothing to say. Not on stdout: that is
    // the log's.
    HF_ASSIGN_OR_RETURN(const v1::Job job, FetchJob(client.get(), id));
    std::cerr << "hfctl: rank " << rank << " has printed nothing; " << OutcomeText(job) << "\n";
  }
  return kExitOk;
}

}  // namespace hyperframes
