#include "client/c/unfit_collectives.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/device/nccl/bus_bandwidth.h"
#include "client/c/json_options.h"
#include "client/doctor/judgement.h"
#include "client/doctor/promises.h"
#include "client/doctor/report.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

using doctor::PathFacts;
using doctor::PathKind;

constexpr size_t kMostRanks = 1 << 16;
constexpr size_t kMostMeasured = 16;
constexpr size_t kLongestError = 400;

absl::StatusOr<PathKind> ReadKind(const std::string& text, const std::string& what) {
  for (const PathKind kind : {PathKind::kAllReduce, PathKind::kSendReceive}) {
    if (text == doctor::KindText(kind)) return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": there is no \"kind\" \"", text.substr(0, 32), "\"; there are \"",
                   doctor::KindText(PathKind::kAllReduce), "\" and \"",
                   doctor::KindText(PathKind::kSendReceive), "\""));
}

absl::StatusOr<PathFacts> ReadMeasured(const nlohmann::json& element, const std::string& what,
                                       int ranks) {
  std::string kind;
  std::string error;
  Bytes bytes = 0;
  double seconds = 0;
  JsonOptions reader(what);
  reader.String("kind", &kind);
  reader.String("error", &error);
  reader.Size("bytes", &bytes);
  reader.Number("seconds", &seconds);
  HF_RETURN_IF_ERROR(reader.Read(element));
  PathFacts path;
  HF_ASSIGN_OR_RETURN(path.kind, ReadKind(kind, what));
  if (!error.empty()) {
    path.status = absl::DeadlineExceededError(error.substr(0, kLongestError));
    return path;
  }
  if (bytes <= 0 || seconds <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": \"bytes\" is ", bytes,
                                                   " and \"seconds\" ", seconds,
                                                   "; both must be > 0, or \"error\" given"));
  }
  const bool reduces = path.kind == PathKind::kAllReduce;
  path.bytes_per_second =
      BusBytesPerSecond(reduces ? Collective::kAllReduce : Collective::kSendReceive, ranks, bytes,
                        absl::Seconds(seconds));
  return path;
}

bool TakesPart(const doctor::GpuFacts& gpu, const JobCollectives& job) {
  return std::find(job.gpus.begin(), job.gpus.end(), gpu.uuid) != job.gpus.end();
}

// Every path of the job leads over `link`.
std::string Judged(const JobCollectives& job, doctor::Facts facts, const std::string& link,
                   double simulated_promise) {
  PathFacts way;  // What the promise is asked for where nothing was measured.
  way.kind = PathKind::kAllReduce;
  way.from = job.gpus.front();
  way.to = job.gpus.back();
  way.link = link;
  way.simulated_promise = simulated_promise;
  const doctor::Promise promise = doctor::PromiseOf(way, facts);
  for (const PathFacts& measured : job.paths) {
    PathFacts path = way;
    path.kind = measured.kind;
    path.bytes_per_second = measured.bytes_per_second;
    path.status = measured.status;
    facts.paths.push_back(std::move(path));
  }
  nlohmann::json speeds = nlohmann::json::object();
  for (const PathFacts& path : facts.paths) {
    if (path.status.ok()) speeds[doctor::KindText(path.kind)] = path.bytes_per_second;
  }
  nlohmann::json unfit = nlohmann::json::array();
  for (const doctor::Finding& finding : doctor::Judge(facts).findings) {
    if (finding.path < 0 || finding.severity != doctor::Severity::kBroken) continue;
    const PathFacts& path = facts.paths[static_cast<size_t>(finding.path)];
    unfit.push_back({{"kind", doctor::KindText(path.kind)},
                     {"from", path.from},
                     {"to", path.to},
                     {"cause", finding.cause},
                     {"remedy", finding.remedy},
                     {"sentence", absl::StrCat("leave HyperFrames off: ", doctor::Sentence(finding),
                                               " (hfctl doctor looks at all of the machine)")}});
  }
  const nlohmann::json verdict = {{"promised_bytes_per_second", promise.bytes_per_second},
                                  {"promised_by", promise.by},
                                  {"bus_bytes_per_second", speeds},
                                  {"unfit", unfit}};
  return verdict.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<JobCollectives> ReadJobCollectives(const std::string& measured_json) {
  JobCollectives job;
  std::vector<std::pair<nlohmann::json, std::string>> measured;
  JsonOptions reader("measured_json");
  reader.Array("gpus", [&](const nlohmann::json& element, const std::string& what) {
    if (!element.is_string() || job.gpus.size() >= kMostRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat("measured_json: ", what, " is no UUID, or one of more than ", kMostRanks));
    }
    job.gpus.push_back(element.get<std::string>());
    return absl::OkStatus();
  });
  reader.Array("measured", [&](const nlohmann::json& element, const std::string& what) {
    measured.emplace_back(element, absl::StrCat("measured_json: ", what));
    return absl::OkStatus();
  });
  HF_RETURN_IF_ERROR(reader.Parse(measured_json));
  if (job.gpus.empty()) return absl::InvalidArgumentError("measured_json: \"gpus\" is empty");
  if (measured.size() > kMostMeasured) {
    return absl::InvalidArgumentError(absl::StrCat("measured_json: \"measured\" has ",
                                                   measured.size(), " elements of at most ",
                                                   kMostMeasured));
  }
  for (const auto& [element, what] : measured) {
    HF_ASSIGN_OR_RETURN(PathFacts path,
                        ReadMeasured(element, what, static_cast<int>(job.gpus.size())));
    job.paths.push_back(std::move(path));
  }
  return job;
}

std::string JudgeRealCollectives(const JobCollectives& job, doctor::Facts facts) {
  bool nvlink = true;
  for (doctor::GpuFacts& gpu : facts.gpus) {
    gpu.visible = TakesPart(gpu, job);
    nvlink = nvlink && (!gpu.visible || gpu.nvlinks > 0);
  }
  const bool all_known =
      std::all_of(job.gpus.begin(), job.gpus.end(), [&facts](const std::string& uuid) {
        return std::any_of(facts.gpus.begin(), facts.gpus.end(),
                           [&uuid](const doctor::GpuFacts& gpu) { return gpu.uuid == uuid; });
      });
  // Of what lies between two nodes nothing is promised here.
  if (!all_known) facts.gpus.clear();
  return Judged(job, std::move(facts), nvlink ? "nvlink" : "pcie", /*simulated_promise=*/0);
}

std::string JudgeSimulatedCollectives(const JobCollectives& job, doctor::Facts facts,
                                      double promise) {
  return Judged(job, std::move(facts), "simulated", promise);
}

}  // namespace hyperframes
