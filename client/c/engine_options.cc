#include "client/c/engine_options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/c/json_options.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr size_t kLongestQuote = 64;

absl::Status Refused(const std::string& field, const std::string& value,
                     const std::string& wanted) {
  return absl::InvalidArgumentError(absl::StrCat("options_json: \"", field, "\" is \"",
                                                 value.substr(0, kLongestQuote), "\"; wanted ",
                                                 wanted));
}

absl::StatusOr<LeaseOptions> ReadLease(const nlohmann::json& element, const std::string& what) {
  LeaseOptions lease;
  std::string tier;
  JsonOptions reader(absl::StrCat("options_json: ", what));
  reader.String("device", &lease.device);
  reader.String("tier", &tier);
  reader.Size("bytes", &lease.bytes);
  reader.String("lease_id", &lease.lease_id);
  reader.String("token", &lease.token);
  reader.String("worker_socket", &lease.worker_socket);
  reader.String("node", &lease.node);
  reader.String("transfer_address", &lease.transfer_address);
  reader.Size("staging_bytes", &lease.staging_bytes);
  HF_RETURN_IF_ERROR(reader.Read(element));
  if (tier == "TIER_PEER" || tier == "peer") {
    lease.tier = Tier::kPeer;
  } else if (tier == "TIER_HOST" || tier == "host") {
    lease.tier = Tier::kHost;
  } else {
    return Refused(absl::StrCat(what, ".tier"), tier, "TIER_PEER or TIER_HOST");
  }
  if (lease.device.empty()) return Refused(absl::StrCat(what, ".device"), "", "a device's UUID");
  if (lease.bytes <= 0) {
    return Refused(absl::StrCat(what, ".bytes"), absl::StrCat(lease.bytes), "more than 0 bytes");
  }
  if (!lease.token.empty() && (lease.lease_id.empty() || lease.worker_socket.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "options_json: ", what,
        " has a token, and so needs lease_id and worker_socket of the agent that granted it"));
  }
  if (!lease.transfer_address.empty() && (lease.token.empty() || lease.node.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "options_json: ", what,
        " has a transfer_address, and so needs node, lease_id, token and worker_socket"));
  }
  return lease;
}

absl::StatusOr<ChaosOptions> ReadChaos(const nlohmann::json& element) {
  ChaosOptions chaos;
  int64_t seed = 1;
  double longest_delay_s = absl::ToDoubleSeconds(chaos.longest_delay);
  std::string direction, tier;
  JsonOptions reader("options_json: chaos");
  reader.Integer("seed", &seed);
  reader.Number("longest_delay_s", &longest_delay_s);
  reader.String("skip_direction", &direction);
  reader.String("skip_tier", &tier);
  HF_RETURN_IF_ERROR(reader.Read(element));
  chaos.enabled = true;
  chaos.seed = static_cast<uint64_t>(seed);
  chaos.longest_delay = absl::Seconds(longest_delay_s);
  if (direction.empty() != tier.empty()) {
    return absl::InvalidArgumentError(
        "options_json: chaos names one lane by skip_direction and skip_tier together");
  }
  if (direction.empty()) return chaos;
  chaos.skip_event = true;
  if (direction != "out" && direction != "in") {
    return Refused("chaos.skip_direction", direction, "out or in");
  }
  if (tier != "peer" && tier != "host") return Refused("chaos.skip_tier", tier, "peer or host");
  chaos.skip_direction = direction == "out" ? Direction::kOut : Direction::kIn;
  chaos.skip_tier = tier == "peer" ? Tier::kPeer : Tier::kHost;
  return chaos;
}

}  // namespace

absl::StatusOr<EngineOptions> ParseEngineOptions(const std::string& json) {
  EngineOptions options;
  JsonOptions reader("options_json");
  reader.String("gpu", &options.gpu);
  reader.Size("stash_limit", &options.engine.stash_limit);
  reader.Size("prefetch_limit", &options.engine.prefetch_limit);
  reader.Bool("verify", &options.engine.verify);
  reader.Bool("measures_only", &options.measures_only);
  reader.Any("chaos", [&](const nlohmann::json& element) -> absl::Status {
    HF_ASSIGN_OR_RETURN(options.engine.chaos, ReadChaos(element));
    return absl::OkStatus();
  });
  reader.Array("leases",
               [&](const nlohmann::json& element, const std::string& what) -> absl::Status {
                 HF_ASSIGN_OR_RETURN(LeaseOptions lease, ReadLease(element, what));
                 options.leases.push_back(std::move(lease));
                 return absl::OkStatus();
               });
  HF_RETURN_IF_ERROR(reader.Parse(json));
  return options;
}

}  // namespace hyperframes
