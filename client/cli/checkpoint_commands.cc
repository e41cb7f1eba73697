#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Table::Align kRight = Table::Align::kRight;

// What all ranks that have reported have written.
Bytes WrittenBytes(const v1::Checkpoint& checkpoint) {
  Bytes written = 0;
  for (const v1::CheckpointShard& shard : checkpoint.shards()) written += shard.bytes();
  return written;
}

std::string SaveText(double seconds) {
  return seconds < 60 ? SecondsText(seconds) : AgeText(seconds);
}

// With what the question was narrowed to: a wrong directory is the commonest reason.
void SayNone(const v1::ListCheckpointsRequest& request, std::ostream* out) {
  *out << "no " << (request.committed_only() ? "committed " : "") << "checkpoints";
  if (!request.job_id().empty()) *out << " of job " << Printable(request.job_id());
  if (!request.directory().empty()) *out << " in " << Printable(request.directory());
  *out << (request.committed_only() ? "; `hfctl checkpoints --all` shows aborted ones and those "
                                      "under way too\n"
                                    : "; `hf.checkpoint` in a job's script saves them\n");
}

void PrintTable(const v1::ListCheckpointsResponse& response, std::ostream* out) {
  bool any_message = false;
  for (const v1::Checkpoint& checkpoint : response.checkpoints()) {
    any_message = any_message || !checkpoint.message().empty();
  }
  std::vector<Table::Column> columns = {
      {"JOB"},           {"STEP", kRight}, {"SUPERFRAME", kRight}, {"STATE"}, {"RANKS", kRight},
      {"BYTES", kRight}, {"AGE", kRight},  {"SAVED IN", kRight},   {"PATH"}};
  if (any_message) columns.push_back({"MESSAGE"});
  Table table(columns);
  for (const v1::Checkpoint& checkpoint : response.checkpoints()) {
    const bool committed = checkpoint.state() == v1::CHECKPOINT_STATE_COMMITTED;
    std::vector<std::string> row = {
        checkpoint.job_id(),
        absl::StrCat(checkpoint.global_step()),
        absl::StrCat(checkpoint.superframe_id()),
        CheckpointStateText(checkpoint.state()),
        absl::StrCat(checkpoint.shards_size(), "/", checkpoint.world_size()),
        FormatBytes(WrittenBytes(checkpoint)),
        AgeText(checkpoint.age_s()),
        committed ? SaveText(checkpoint.save_s()) : "",
        absl::StrCat(checkpoint.directory(), "/", checkpoint.name())};
    if (any_message) row.push_back(checkpoint.message());
    table.AddRow(std::move(row));
  }
  table.Print(out);
}

}  // namespace

absl::StatusOr<int> RunCheckpoints(CommandLine* line) {
  v1::ListCheckpointsRequest request;
  std::string job;
  std::string directory;
  bool all = false;
  int64_t limit = 100;
  line->config()->AddString(&job, "job", "only of this job");
  line->config()->AddString(&directory, "directory", "only in this directory, absolute");
  line->config()->AddBool(&all, "all", "aborted ones and those under way too");
  line->config()->AddInt(&limit, "limit", 1, 1000, "newest checkpoints to show");
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(0, 0));
  if (!run) return kExitOk;
  // As the coordinator spells it.
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  request.set_job_id(job);
  request.set_directory(directory);
  request.set_committed_only(!all);
  request.set_limit(static_cast<int32_t>(limit));
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  HF_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse response, client->ListCheckpoints(request));
  if (line->json()) {
    HF_RETURN_IF_ERROR(line->PrintJson(response));
  } else if (response.checkpoints().empty()) {
    SayNone(request, line->out());
  } else {
    PrintTable(response, line->out());
  }
  return kExitOk;
}

}  // namespace hyperframes
