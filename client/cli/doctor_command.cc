#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"
#include "client/doctor/collective_process.h"
#include "client/doctor/examination.h"
#include "client/doctor/judgement.h"
#include "client/doctor/report.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kMeasureCollectives = "measure-collectives";
constexpr Table::Align kRight = Table::Align::kRight;

std::string MeasuredText(const doctor::PathFacts& path) {
  if (path.out_of_time || path.untried) return "not measured";
  return path.status.ok() ? doctor::SpeedText(path.bytes_per_second) : "no way";
}

void PrintPaths(const doctor::Facts& facts, std::ostream* out) {
  if (facts.paths.empty()) return;
  Table table({{"PATH"},
               {"LINK"},
               {"MEASURED", kRight},
               {"LATENCY", kRight},
               {"PROMISED", kRight},
               {"SHARE", kRight},
               {"PROMISED BY"}});
  for (const doctor::PathFacts& path : facts.paths) {
    const doctor::Promise promise = doctor::PromiseOf(path, facts);
    const bool measured = path.status.ok() && !path.out_of_time;
    const bool promised = promise.bytes_per_second > 0;
    table.AddRow(
        {doctor::PathText(path), path.link, MeasuredText(path),
         measured ? absl::StrFormat("%.1fus", absl::ToDoubleMicroseconds(path.latency)) : "",
         promised ? doctor::SpeedText(promise.bytes_per_second) : "",
         measured && promised
             ? absl::StrFormat("%.0f%%", 100 * path.bytes_per_second / promise.bytes_per_second)
             : "",
         promise.by});
  }
  table.Print(out);
  *out << "\n";
}

// What could be checked without any GPU, so that nobody has to guess whether it was.
std::string LimitsText(const doctor::HostFacts& host) {
  const bool unlimited = host.is_root || !host.memlock.has_value();
  std::string text = absl::StrCat(
      "locked memory ", unlimited ? "unlimited" : FormatBytes(*host.memlock), ", /dev/shm ",
      FormatBytes(host.shared_memory_bytes), ", available ", FormatBytes(host.available_bytes));
  if (host.memory_limit.has_value()) {
    absl::StrAppend(&text, ", the container's limit ", FormatBytes(*host.memory_limit));
  }
  return text;
}

void PrintDiagnosis(const doctor::Facts& facts, const doctor::Diagnosis& diagnosis,
                    std::ostream* out) {
  PrintPaths(facts, out);
  *out << "limits: " << LimitsText(facts.host) << "\n";
  for (const doctor::Finding& finding : diagnosis.findings) {
    *out << Printable(absl::StrCat(absl::AsciiStrToUpper(doctor::SeverityText(finding.severity)),
                                   ": ", doctor::Sentence(finding)))
         << "\n";
  }
  *out << Printable(absl::StrFormat("%s (%.1f s)", diagnosis.verdict,
                                    absl::ToDoubleSeconds(facts.elapsed)))
       << "\n";
}

}  // namespace

bool MeasuresCollectives(const std::vector<std::string>& arguments) {
  if (arguments != std::vector<std::string>{kMeasureCollectives}) return false;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  doctor::MeasureCollectives(STDIN_FILENO, [](const std::string& line) {
    fputs(line.c_str(), stdout);
    fflush(stdout);
  });
  _exit(kExitOk);  // What NCCL and the driver may have left hanging is not waited for.
}

absl::StatusOr<int> RunDoctor(CommandLine* line) {
  std::string host_devices;
  line->config()->AddString(&host_devices, "host-devices",
                            "simulated GPUs to look at instead of real ones");
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(0, 0));
  if (!run) return kExitOk;
  // This program once more: a collective that hangs holds its GPUs until its process ends.
  HF_ASSIGN_OR_RETURN(auto sources,
                      doctor::SourcesHere(host_devices, {"/proc/self/exe", kMeasureCollectives}));
  const doctor::Facts facts =
      doctor::Examine(std::move(sources), line->timeout(doctor::kUsualTime));
  const doctor::Diagnosis diagnosis = doctor::Judge(facts);
  if (line->json()) {
    *line->out() << doctor::ReportJson(facts, diagnosis) << "\n";
  } else {
    PrintDiagnosis(facts, diagnosis, line->out());
  }
  const int code = diagnosis.healthy ? kExitOk : kExitFailed;
  if (!facts.answered) {
    // A thread is stuck in the driver: an orderly exit would wait for it.
    line->out()->flush();
    std::_Exit(code);
  }
  return code;
}

}  // namespace hyperframes
