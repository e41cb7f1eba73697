#include "agent/service/link_survey.h"

#include <glog/logging.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/process_identity.h"
#include "agent/supervisor/record_file.h"
#include "common/bounded_command.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kHeader = "hyperframes links 1";

using Ends = std::pair<std::string, std::string>;

std::set<Ends> EndsOf(const LinkReport& report) {
  std::set<Ends> ends;
  for (const v1::LinkProfile& link : report.links) ends.emplace(link.from(), link.to());
  for (const UnmeasuredLink& link : report.unmeasured) ends.emplace(link.from, link.to);
  return ends;
}

// Another try would find the same.
bool IsFinal(const LinkReport& report) {
  return std::all_of(report.unmeasured.begin(), report.unmeasured.end(),
                     [](const UnmeasuredLink& link) {
                       return link.reason == "no_access" || link.reason == "unusable";
                     });
}

// Without what an agent that lends no host memory has no use for.
LinkReport Only(const std::set<Ends>& wanted, LinkReport report) {
  LinkReport kept;
  for (v1::LinkProfile& link : report.links) {
    if (wanted.count({link.from(), link.to()}) > 0) kept.links.push_back(std::move(link));
  }
  for (UnmeasuredLink& link : report.unmeasured) {
    if (wanted.count({link.from, link.to}) > 0) kept.unmeasured.push_back(std::move(link));
  }
  return kept;
}

void Log(const LinkReport& report) {
  LOG(INFO) << report.links.size() << " links measured, " << report.unmeasured.size() << " not";
  for (const UnmeasuredLink& link : report.unmeasured) {
    LOG(WARNING) << "the path from " << link.from << " to " << link.to << " was not measured ("
                 << link.reason << "): " << link.message;
  }
}

}  // namespace

LinkSurvey::LinkSurvey(LinkSurveyOptions options, const GpuMachine* machine,
                       std::function<void(const LinkReport&)> measured)
    : options_(std::move(options)),
      machine_(machine),
      measured_(std::move(measured)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  if (machine_->backend() == "host") {
    Settle(MeasureLinks(*machine_));
  } else if (absl::StatusOr<LinkReport> kept = ReadKept(); kept.ok()) {
    Settle(*std::move(kept));
  } else {
    VLOG(1) << "links are measured: " << kept.status();
    thread_ = std::thread([this] { Run(); });
  }
}

LinkSurvey::~LinkSurvey() {
  eventfd_write(stop_, 1);
  if (thread_.joinable()) thread_.join();
  close(stop_);
}

LinkReport LinkSurvey::report() const {
  MutexLock lock(&mutex_);
  return report_;
}

bool LinkSurvey::done() const {
  MutexLock lock(&mutex_);
  return done_;
}

void LinkSurvey::Settle(LinkReport report) {
  Log(report);
  MutexLock lock(&mutex_);
  report_ = std::move(report);
  done_ = true;
}

void LinkSurvey::Run() {
  LinkReport report = Probe();
  if (IsFinal(report)) Keep(report);
  Settle(report);
  measured_(report);
}

LinkReport LinkSurvey::Probe() {
  BoundedCommand command;
  command.arguments = {options_.probe_path, "links", "--node=" + options_.node};
  command.deadline = options_.deadline;
  command.stop = stop_;
  std::string output;
  absl::Status ended = RunBounded(command, &output);
  absl::StatusOr<LinkReport> read = ReadLinkLines(output);
  LinkReport report;
  if (read.ok()) {
    const auto paths = PathsOf(*machine_);
    report = Only({paths.begin(), paths.end()}, *std::move(read));
  } else if (ended.ok()) {
    ended = read.status();
  }
  // Whatever it did not come to is still named.
  const std::set<Ends> told = EndsOf(report);
  for (const Ends& path : PathsOf(*machine_)) {
    if (told.count(path) > 0) continue;
    report.unmeasured.push_back(
        {path.first, path.second, absl::IsDeadlineExceeded(ended) ? "timed_out" : "probe_failed",
         ended.ok() ? "hfprobe left it out" : std::string(ended.message().substr(0, 256))});
  }
  return report;
}

std::string LinkSurvey::Key() const {
  std::string key = absl::StrCat(kHeader, " ", BootId());
  for (const Ends& path : PathsOf(*machine_))
    absl::StrAppend(&key, " ", path.first, ">", path.second);
  return key + "\n";
}

absl::StatusOr<LinkReport> LinkSurvey::ReadKept() const {
  if (options_.kept_path.empty()) return absl::NotFoundError("nothing is kept");
  HF_ASSIGN_OR_RETURN(const std::string text, ReadRecordFile(options_.kept_path));
  const std::string key = Key();
  if (!absl::StartsWith(text, key)) {
    return absl::NotFoundError("what is kept is of another boot or of other GPUs");
  }
  return ReadLinkLines(text.substr(key.size()));
}

void LinkSurvey::Keep(const LinkReport& report) const {
  if (options_.kept_path.empty()) return;
  const absl::Status kept = WriteRecordFile(
      options_.kept_path, absl::StrCat(Key(), WriteLinkLines(report)), /*durable=*/false);
  if (!kept.ok()) LOG(WARNING) << "measured links are not kept: " << kept.message();
}

}  // namespace hyperframes
