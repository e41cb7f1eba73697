#include "client/cli/text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

namespace hyperframes {
namespace {

std::string WithoutPrefix(const std::string& name, const std::string& prefix) {
  if (name.compare(0, prefix.size(), prefix) != 0) return "UNKNOWN";  // A newer coordinator's.
  return name.substr(prefix.size());
}

}  // namespace

std::string AgeText(double seconds) {
  if (!(seconds >= 0)) return "-";
  if (seconds < 10) return absl::StrFormat("%.1fs", seconds);
  const auto whole = static_cast<int64_t>(std::min(seconds, 1e12));
  if (whole < 60) return absl::StrFormat("%ds", whole);
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh%02dm", whole / 3600, whole / 60 % 60);
  return absl::StrFormat("%dd%02dh", whole / 86400, whole / 3600 % 24);
}

std::string SecondsText(double seconds) {
  if (seconds == 0) return "0";
  if (std::fabs(seconds) < 1e-3) return absl::StrFormat("%.0fus", seconds * 1e6);
  if (std::fabs(seconds) < 1) return absl::StrFormat("%.2fms", seconds * 1e3);
  return absl::StrFormat("%.2fs", seconds);
}

std::string NodeStateText(v1::NodeState state) {
  return WithoutPrefix(v1::NodeState_Name(state), "NODE_STATE_");
}

std::string WorkerStateText(v1::WorkerState state) {
  return WithoutPrefix(v1::WorkerState_Name(state), "WORKER_STATE_");
}

std::string LeaseStateText(v1::LeaseState state) {
  return WithoutPrefix(v1::LeaseState_Name(state), "LEASE_STATE_");
}

std::string CheckpointStateText(v1::CheckpointState state) {
  return WithoutPrefix(v1::CheckpointState_Name(state), "CHECKPOINT_STATE_");
}

std::string TierText(v1::Tier tier) {
  return absl::AsciiStrToLower(WithoutPrefix(v1::Tier_Name(tier), "TIER_"));
}

std::string PolicyText(v1::Policy policy) {
  return absl::AsciiStrToLower(WithoutPrefix(v1::Policy_Name(policy), "POLICY_"));
}

std::string ShareText(Bytes part, Bytes whole) {
  if (whole <= 0) return "-";
  return absl::StrFormat("%.0f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace hyperframes
