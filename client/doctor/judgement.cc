#include "client/doctor/judgement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/doctor/causes.h"
#include "client/doctor/machine_judgement.h"

namespace hyperframes {
namespace doctor {
namespace {

constexpr size_t kMostNamed = 4;

// What a path's measurement comes to, or nothing when there is nothing to say about it.
absl::optional<Finding> JudgePath(const PathFacts& path, const Facts& facts) {
  if (path.out_of_time) return absl::nullopt;
  Finding finding;
  finding.subject = PathText(path);
  const Promise promise = PromiseOf(path, facts);
  if (promise.bytes_per_second > 0) {
    finding.promised = absl::StrCat(SpeedText(promise.bytes_per_second), " (", promise.by, ")");
  }
  if (path.untried) {
    finding.severity = Severity::kWarning;
    finding.measured = "not measured";
  } else if (!path.status.ok()) {
    finding.severity = Severity::kBroken;
    finding.measured = "no way";
  } else {
    finding.measured = SpeedText(path.bytes_per_second);
    if (promise.bytes_per_second <= 0) return absl::nullopt;
    const double share = path.bytes_per_second / promise.bytes_per_second;
    if (share >= kSlow) return absl::nullopt;
    finding.severity = share < kBroken ? Severity::kBroken : Severity::kWarning;
  }
  const Reason reason = LikelyReason(path, facts);
  finding.cause = reason.cause;
  finding.remedy = reason.remedy;
  return finding;
}

absl::optional<Finding> UnmeasuredPaths(const Facts& facts) {
  const auto count = std::count_if(facts.paths.begin(), facts.paths.end(),
                                   [](const PathFacts& path) { return path.out_of_time; });
  if (count == 0) return absl::nullopt;
  Finding finding;
  finding.subject = absl::StrCat(count, " of ", facts.paths.size(), " paths");
  finding.measured = "not measured";
  finding.cause = "the time was up before their turn, or their GPUs are too full to copy with";
  finding.remedy = "give more time (--timeout 30s), or run it when the GPUs are free";
  return finding;
}

std::string Named(const std::vector<std::string>& names) {
  if (names.size() <= kMostNamed) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kMostNamed, ", "), " and ",
                      names.size() - kMostNamed, " more");
}

std::string Verdict(const Diagnosis& diagnosis, const Facts& facts) {
  std::vector<std::string> links;
  std::vector<std::string> others;
  for (const Finding& finding : diagnosis.findings) {
    if (finding.severity != Severity::kBroken) continue;
    (finding.path >= 0 ? links : others).push_back(finding.subject);
  }
  const auto measured =
      std::count_if(facts.paths.begin(), facts.paths.end(),
                    [](const PathFacts& path) { return path.status.ok() && !path.out_of_time; });
  if (!others.empty()) {
    return absl::StrCat("leave HyperFrames off until this is mended: ", Named(others));
  }
  if (links.empty()) {
    return measured > 0 ? "healthy" : "nothing is wrong, and no link could be measured";
  }
  const bool some_work = static_cast<size_t>(measured) > links.size();
  return absl::StrCat(some_work ? "leave HyperFrames off these links, the others are usable: "
                                : "leave HyperFrames off: ",
                      Named(links));
}

}  // namespace

Diagnosis Judge(const Facts& facts) {
  Diagnosis diagnosis;
  diagnosis.findings = JudgeMachine(facts);
  for (size_t index = 0; index < facts.paths.size(); ++index) {
    absl::optional<Finding> finding = JudgePath(facts.paths[index], facts);
    if (!finding.has_value()) continue;
    finding->path = static_cast<int>(index);
    diagnosis.findings.push_back(*finding);
  }
  if (const auto unmeasured = UnmeasuredPaths(facts)) diagnosis.findings.push_back(*unmeasured);
  std::stable_sort(
      diagnosis.findings.begin(), diagnosis.findings.end(),
      [](const Finding& one, const Finding& other) { return one.severity > other.severity; });
  diagnosis.healthy =
      diagnosis.findings.empty() || diagnosis.findings.front().severity != Severity::kBroken;
  diagnosis.verdict = Verdict(diagnosis, facts);
  return diagnosis;
}

std::string Sentence(const Finding& finding) {
  std::string text = absl::StrCat(finding.subject, ": ", finding.measured);
  if (!finding.promised.empty()) absl::StrAppend(&text, ", promised ", finding.promised);
  absl::StrAppend(&text, "; ", finding.cause);
  if (!finding.remedy.empty()) absl::StrAppend(&text, "; ", finding.remedy);
  return text;
}

std::string SpeedText(double bytes_per_second) {
  if (bytes_per_second >= 100e9) return absl::StrFormat("%.0fGB/s", bytes_per_second / 1e9);
  if (bytes_per_second >= 1e9) return absl::StrFormat("%.1fGB/s", bytes_per_second / 1e9);
  return absl::StrFormat("%.1fMB/s", bytes_per_second / 1e6);
}

std::string PathText(const PathFacts& path) {
  std::string ends = absl::StrCat(ShortUuid(path.from), " -> ", ShortUuid(path.to));
  if (path.kind == PathKind::kAllReduce || path.kind == PathKind::kSendReceive) {
    return absl::StrCat(path.kind == PathKind::kAllReduce ? "all-reduce " : "send/recv ", ends);
  }
  return ends;
}

}  // namespace doctor
}  // namespace hyperframes
