#include "coordinator/wire/plan_wire.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/wire/wire_check.h"

namespace hyperframes {
namespace {

absl::StatusOr<StorageDecision> StorageFromProto(const v1::StorageDecision& message,
                                                 const std::string& field) {
  StorageDecision storage;
  storage.ordinal = message.ordinal();
  HF_ASSIGN_OR_RETURN(storage.tier, WireTier(absl::StrCat(field, ".tier"), message.tier()));
  storage.device = message.device();
  if (message.preferred_offset() < -1) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ".preferred_offset is ", message.preferred_offset(), "; -1 means anywhere"));
  }
  storage.preferred_offset = message.preferred_offset();
  return storage;
}

v1::StorageDecision StorageToProto(const StorageDecision& storage) {
  v1::StorageDecision message;
  message.set_ordinal(storage.ordinal);
  message.set_tier(static_cast<v1::Tier>(storage.tier));
  message.set_device(storage.device);
  message.set_preferred_offset(storage.preferred_offset);
  return message;
}

absl::StatusOr<BlockDecision> BlockFromProto(const v1::BlockDecision& message,
                                             const std::string& field) {
  BlockDecision block;
  block.name = message.name();
  HF_ASSIGN_OR_RETURN(block.policy, WirePolicy(absl::StrCat(field, ".policy"), message.policy()));
  for (int s = 0; s < message.storages_size(); ++s) {
    HF_ASSIGN_OR_RETURN(
        StorageDecision storage,
        StorageFromProto(message.storages(s), absl::StrCat(field, ".storages[", s, "]")));
    block.storages.push_back(std::move(storage));
  }
  for (int s = 0; s < message.selected_size(); ++s) {
    HF_ASSIGN_OR_RETURN(
        StorageDecision storage,
        StorageFromProto(message.selected(s), absl::StrCat(field, ".selected[", s, "]")));
    block.selected.push_back(std::move(storage));
  }
  block.reason = message.reason();
  HF_RETURN_IF_ERROR(CheckWireNumber(absl::StrCat(field, ".confidence"), message.confidence()));
  block.confidence = message.confidence();
  return block;
}

absl::Status BytesFromProto(const v1::RankPlan& message, const std::string& field, RankPlan* rank) {
  const struct {
    const char* name;
    int64_t value;
    Bytes* to;
  } fields[] = {
      {".stash_limit", message.stash_limit(), &rank->stash_limit},
      {".prefetch_limit", message.prefetch_limit(), &rank->prefetch_limit},
      {".keep_bytes", message.keep_bytes(), &rank->bytes_by_tier[static_cast<int>(Tier::kKeep)]},
      {".peer_bytes", message.peer_bytes(), &rank->bytes_by_tier[static_cast<int>(Tier::kPeer)]},
      {".host_bytes", message.host_bytes(), &rank->bytes_by_tier[static_cast<int>(Tier::kHost)]},
      {".recomputed_bytes", message.recomputed_bytes(), &rank->recomputed_bytes},
      {".activation_bytes", message.activation_bytes(), &rank->activation_bytes},
      {".predicted_activation_peak", message.predicted_activation_peak(),
       &rank->predicted_activation_peak},
      {".predicted_peak", message.predicted_peak(), &rank->predicted_peak},
  };
  for (const auto& one : fields) {
    HF_RETURN_IF_ERROR(CheckWireBytes(absl::StrCat(field, one.name), one.value));
    *one.to = one.value;
  }
  return absl::OkStatus();
}

absl::StatusOr<RankPlan> RankFromProto(const v1::RankPlan& message, const std::string& field) {
  RankPlan rank;
  rank.rank = message.rank();
  for (int b = 0; b < message.blocks_size(); ++b) {
    HF_ASSIGN_OR_RETURN(BlockDecision block,
                        BlockFromProto(message.blocks(b), absl::StrCat(field, ".blocks[", b, "]")));
    rank.blocks.push_back(std::move(block));
  }
  for (int l = 0; l < message.leases_size(); ++l) {
    const v1::LeaseNeed& lease = message.leases(l);
    const std::string of = absl::StrCat(field, ".leases[", l, "]");
    HF_ASSIGN_OR_RETURN(const Tier tier, WireTier(absl::StrCat(of, ".tier"), lease.tier()));
    HF_RETURN_IF_ERROR(CheckWireBytes(absl::StrCat(of, ".bytes"), lease.bytes()));
    HF_RETURN_IF_ERROR(CheckWireBytes(absl::StrCat(of, ".staging_bytes"), lease.staging_bytes()));
    rank.leases.push_back(
        {lease.device(), tier, lease.bytes(), lease.node(), lease.staging_bytes()});
  }
  HF_RETURN_IF_ERROR(BytesFromProto(message, field, &rank));
  HF_ASSIGN_OR_RETURN(rank.predicted_step, WireDuration(absl::StrCat(field, ".predicted_step_s"),
                                                        message.predicted_step_s()));
  HF_ASSIGN_OR_RETURN(
      rank.predicted_exposed,
      WireDuration(absl::StrCat(field, ".predicted_exposed_s"), message.predicted_exposed_s()));
  HF_ASSIGN_OR_RETURN(
      rank.predicted_recompute,
      WireDuration(absl::StrCat(field, ".predicted_recompute_s"), message.predicted_recompute_s()));
  return rank;
}

v1::RankPlan RankToProto(const RankPlan& rank) {
  v1::RankPlan message;
  message.set_rank(rank.rank);
  for (const BlockDecision& block : rank.blocks) {
    v1::BlockDecision* to = message.add_blocks();
    to->set_name(block.name);
    to->set_policy(static_cast<v1::Policy>(block.policy));
    for (const StorageDecision& storage : block.storages) {
      *to->add_storages() = StorageToProto(storage);
    }
    for (const StorageDecision& storage : block.selected) {
      *to->add_selected() = StorageToProto(storage);
    }
    to->set_reason(block.reason);
    to->set_confidence(block.confidence);
  }
  for (const LeaseNeed& lease : rank.leases) {
    v1::LeaseNeed* to = message.add_leases();
    to->set_device(lease.device);
    to->set_tier(static_cast<v1::Tier>(lease.tier));
    to->set_bytes(lease.bytes);
    to->set_node(lease.node);
    to->set_staging_bytes(lease.staging_bytes);
  }
  message.set_stash_limit(rank.stash_limit);
  message.set_prefetch_limit(rank.prefetch_limit);
  message.set_keep_bytes(rank.bytes_by_tier[static_cast<int>(Tier::kKeep)]);
  message.set_peer_bytes(rank.bytes_by_tier[static_cast<int>(Tier::kPeer)]);
  message.set_host_bytes(rank.bytes_by_tier[static_cast<int>(Tier::kHost)]);
  message.set_recomputed_bytes(rank.recomputed_bytes);
  message.set_activation_bytes(rank.activation_bytes);
  message.set_predicted_activation_peak(rank.predicted_activation_peak);
  message.set_predicted_peak(rank.predicted_peak);
  message.set_predicted_step_s(absl::ToDoubleSeconds(rank.predicted_step));
  message.set_predicted_exposed_s(absl::ToDoubleSeconds(rank.predicted_exposed));
  message.set_predicted_recompute_s(absl::ToDoubleSeconds(rank.predicted_recompute));
  return message;
}

}  // namespace

absl::StatusOr<FramePlan> FromProto(const v1::FramePlan& message, const std::string& field) {
  FramePlan plan;
  plan.id = message.id();
  for (int r = 0; r < message.ranks_size(); ++r) {
    HF_ASSIGN_OR_RETURN(RankPlan rank,
                        RankFromProto(message.ranks(r), absl::StrCat(field, ".ranks[", r, "]")));
    plan.ranks.push_back(std::move(rank));
  }
  plan.advice = message.advice();
  HF_RETURN_IF_ERROR(CheckWireNumber(absl::StrCat(field, ".water_level_max_over_mean"),
                                     message.water_level_max_over_mean()));
  plan.water_level_max_over_mean = message.water_level_max_over_mean();
  return plan;
}

v1::FramePlan ToProto(const FramePlan& plan, int64_t epoch) {
  v1::FramePlan message;
  message.set_id(plan.id);
  message.set_epoch(epoch);
  for (const RankPlan& rank : plan.ranks) *message.add_ranks() = RankToProto(rank);
  message.set_advice(plan.advice);
  message.set_water_level_max_over_mean(plan.water_level_max_over_mean);
  return message;
}

}  // namespace hyperframes
