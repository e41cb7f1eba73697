#include "agent/service/link_report.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/device/borrowed_memory.h"
#include "agent/device/link_probe.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

using Json = nlohmann::json;

constexpr Bytes kProbeBytes = 16 * kMiB;
constexpr Bytes kProbeBytesOnCuda = 64 * kMiB;  // NVLink is at a quarter less with 16 MiB.
constexpr Bytes kSmallestProbe = 4 * kKiB;
// A GPU with less is busy: the context and the buffers of a measurement could be what its training
// needs next.
constexpr Bytes kRoomOnCuda = 2 * kGiB;
constexpr size_t kLongestMessage = 256;
constexpr size_t kMostLines = 16384;

// One path: from or to `gpu`, which drives the copy.
struct Path {
  Device* gpu;
  Device* other;
  Direction direction;
  Tier tier;
  bool out() const { return direction == Direction::kOut; }
  const std::string& from() const { return (out() ? gpu : other)->description().uuid; }
  const std::string& to() const { return (out() ? other : gpu)->description().uuid; }
};

std::vector<Path> Paths(const GpuMachine& machine) {
  std::vector<Path> paths;
  for (Device* const gpu : machine.gpus()) {
    for (Device* const peer : machine.gpus()) {
      if (gpu != peer) paths.push_back({gpu, peer, Direction::kOut, Tier::kPeer});
    }
    Device* const host = machine.host();
    if (host == nullptr || host->description().total_bytes == 0) continue;
    paths.push_back({gpu, host, Direction::kOut, Tier::kHost});
    paths.push_back({gpu, host, Direction::kIn, Tier::kHost});
  }
  return paths;
}

bool IsCuda(const Device& device) { return device.description().backend == "cuda"; }

// Why `path` is not even tried, as (reason, sentence); an empty reason: it is.
std::pair<std::string, std::string> Obstacle(const GpuMachine& machine, const Path& path) {
  for (Device* const end : {path.gpu, path.other}) {
    if (end == machine.host()) continue;
    const absl::Status usable = machine.CheckUsable(*end);
    if (!usable.ok()) return {"unusable", std::string(usable.message())};
    if (IsCuda(*end) && end->free_bytes() < kRoomOnCuda) {
      return {"no_room",
              absl::StrCat(end->description().uuid, " has ", FormatBytes(end->free_bytes()),
                           " free, and measuring takes ", FormatBytes(kRoomOnCuda),
                           ": start the agent while it is idle")};
    }
  }
  if (path.tier == Tier::kPeer && !machine.CanReach(*path.gpu, *path.other)) {
    return {"no_access", absl::StrCat(path.from(), " cannot reach ", path.to(),
                                      " directly: see nvidia-smi topo -p2p rw")};
  }
  return {};
}

// A quarter of what is free at most: leases may be wanted at the same moment.
Bytes RoomOn(const Device& device) {
  const Bytes most = IsCuda(device) ? kProbeBytesOnCuda : kProbeBytes;
  return std::max(kSmallestProbe, std::min(most, device.free_bytes() / 4));
}

absl::StatusOr<LinkMeasurement> Measure(const Path& path, absl::Duration time_limit) {
  const Bytes bytes = std::min(RoomOn(*path.gpu), RoomOn(*path.other));
  HF_ASSIGN_OR_RETURN(const auto near, BorrowMemory(path.gpu, path.gpu, bytes));
  HF_ASSIGN_OR_RETURN(const auto far, BorrowMemory(path.gpu, path.other, bytes));
  HF_RETURN_IF_ERROR(far->WaitUntilUsable());
  HF_ASSIGN_OR_RETURN(const auto stream, path.gpu->CreateStream(path.direction, path.tier));
  LinkProbeOptions options;
  options.time_limit = time_limit;
  options.large_bytes = bytes;
  return ProbeLink(stream.get(), path.out() ? *far : *near, path.out() ? *near : *far, options);
}

LinkReport Try(const GpuMachine& machine, const Path& path, absl::Duration time_limit) {
  LinkReport one;
  auto [reason, message] = Obstacle(machine, path);
  if (reason.empty()) {
    const absl::StatusOr<LinkMeasurement> measured = Measure(path, time_limit);
    if (measured.ok()) {
      v1::LinkProfile link;
      link.set_from(path.from());
      link.set_to(path.to());
      link.set_bytes_per_second(measured->bytes_per_second);
      link.set_latency_s(absl::ToDoubleSeconds(measured->latency));
      link.set_kind(machine.LinkKind(*path.gpu, *path.other));
      // All of a node's GPUs share its way into host memory.
      if (path.tier == Tier::kHost && IsCuda(*path.gpu)) {
        link.set_shared_group(path.other->description().uuid);
      }
      one.links.push_back(std::move(link));
      return one;
    }
    reason = absl::IsResourceExhausted(measured.status()) ? "no_room" : "copy_failed";
    message = std::string(measured.status().message());
  }
  one.unmeasured.push_back({path.from(), path.to(), reason, message.substr(0, kLongestMessage)});
  return one;
}

}  // namespace

LinkReport MeasureLinks(const GpuMachine& machine, absl::Duration time_limit,
                        const std::function<void(const LinkReport& one)>& told) {
  LinkReport report;
  for (const Path& path : Paths(machine)) {
    LinkReport one = Try(machine, path, time_limit);
    if (told != nullptr) told(one);
    for (v1::LinkProfile& link : one.links) report.links.push_back(std::move(link));
    for (UnmeasuredLink& link : one.unmeasured) report.unmeasured.push_back(std::move(link));
  }
  return report;
}

std::vector<std::pair<std::string, std::string>> PathsOf(const GpuMachine& machine) {
  std::vector<std::pair<std::string, std::string>> ends;
  for (const Path& path : Paths(machine)) ends.emplace_back(path.from(), path.to());
  return ends;
}

std::string WriteLinkLines(const LinkReport& report) {
  std::string text;
  const auto add = [&text](const Json& line) {
    absl::StrAppend(&text, line.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
  };
  for (const v1::LinkProfile& link : report.links) {
    add({{"from", link.from()},
         {"to", link.to()},
         {"bytes_per_second", link.bytes_per_second()},
         {"latency_s", link.latency_s()},
         {"kind", link.kind()},
         {"shared_group", link.shared_group()}});
  }
  for (const UnmeasuredLink& link : report.unmeasured) {
    add({{"from", link.from}, {"to", link.to}, {"reason", link.reason}, {"message", link.message}});
  }
  return text;
}

absl::StatusOr<LinkReport> ReadLinkLines(const std::string& text) {
  LinkReport report;
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();  // Behind the last end of line: nothing, or an unfinished line.
  for (const std::string& line : lines) {
    const Json read = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto has = [&read](const char* key) {
      return read.is_object() && read.contains(key) && read[key].is_string();
    };
    const bool measured = read.is_object() && read.contains("bytes_per_second") &&
                          read["bytes_per_second"].is_number() && has("kind");
    if (!has("from") || !has("to") || (!measured && !has("reason")) ||
        report.links.size() + report.unmeasured.size() >= kMostLines) {
      return absl::InvalidArgumentError(
          absl::StrCat("no link: '", line.substr(0, 80), "' of ", lines.size(), " lines"));
    }
    if (!measured) {
      report.unmeasured.push_back(
          {read["from"], read["to"], read["reason"],
           read.value("message", std::string()).substr(0, kLongestMessage)});
      continue;
    }
    v1::LinkProfile link;
    link.set_from(read["from"]);
    link.set_to(read["to"]);
    link.set_bytes_per_second(read["bytes_per_second"]);
    link.set_latency_s(read.value("latency_s", 0.0));
    link.set_kind(read["kind"]);
    link.set_shared_group(read.value("shared_group", std::string()));
    report.links.push_back(std::move(link));
  }
  return report;
}

}  // namespace hyperframes
