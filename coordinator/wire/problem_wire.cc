#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/wire/plan_wire.h"
#include "coordinator/wire/wire_check.h"

namespace hyperframes {
namespace {

absl::StatusOr<StorageProfile> StorageFromProto(const v1::StorageProfile& message,
                                                const std::string& field) {
  HF_RETURN_IF_ERROR(CheckWireBytes(absl::StrCat(field, ".bytes"), message.bytes()));
  StorageProfile storage;
  storage.ordinal = message.ordinal();
  storage.bytes = message.bytes();
  storage.dtype = message.dtype();
  for (int d = 0; d < message.shape_size(); ++d) {
    if (message.shape(d) < 0) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".shape[", d, "] is ", message.shape(d),
                                                     "; an extent is never negative"));
    }
    storage.shape.push_back(message.shape(d));
  }
  storage.is_input = message.is_input();
  storage.movable = !message.unmovable();
  storage.unmovable_reason = message.unmovable_reason();
  storage.stable = !message.unstable();
  if (message.consumers() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".consumers is ", message.consumers(), "; 0 reads as 1"));
  }
  storage.consumers = message.consumers() == 0 ? 1 : message.consumers();
  return storage;
}

v1::StorageProfile StorageToProto(const StorageProfile& storage) {
  v1::StorageProfile message;
  message.set_ordinal(storage.ordinal);
  message.set_bytes(storage.bytes);
  message.set_dtype(storage.dtype);
  for (const int64_t extent : storage.shape) message.add_shape(extent);
  message.set_is_input(storage.is_input);
  message.set_unmovable(!storage.movable);
  message.set_unmovable_reason(storage.unmovable_reason);
  message.set_unstable(!storage.stable);
  message.set_consumers(storage.consumers);
  return message;
}

absl::StatusOr<SelectiveStorage> SelectiveFromProto(const v1::SelectiveStorage& message,
                                                    const std::string& field) {
  HF_RETURN_IF_ERROR(CheckWireBytes(absl::StrCat(field, ".bytes"), message.bytes()));
  SelectiveStorage storage;
  storage.ordinal = message.ordinal();
  storage.bytes = message.bytes();
  HF_ASSIGN_OR_RETURN(storage.recompute,
                      WireDuration(absl::StrCat(field, ".recompute_s"), message.recompute_s()));
  storage.is_saved = message.is_saved();
  storage.movable = !message.unmovable();
  storage.always = message.always();
  storage.op = message.op();
  HF_RETURN_IF_ERROR(CheckWireBytes(absl::StrCat(field, ".kept_bytes"), message.kept_bytes()));
  storage.kept_bytes = message.kept_bytes();
  return storage;
}

v1::SelectiveStorage SelectiveToProto(const SelectiveStorage& storage) {
  v1::SelectiveStorage message;
  message.set_ordinal(storage.ordinal);
  message.set_bytes(storage.bytes);
  message.set_recompute_s(absl::ToDoubleSeconds(storage.recompute));
  message.set_is_saved(storage.is_saved);
  message.set_unmovable(!storage.movable);
  message.set_always(storage.always);
  message.set_op(storage.op);
  message.set_kept_bytes(storage.kept_bytes);
  return message;
}

absl::StatusOr<BackwardPhase> PhaseFromProto(const v1::BackwardPhase& message,
                                             const std::string& field) {
  BackwardPhase phase;
  phase.reads = message.reads();
  HF_RETURN_IF_ERROR(CheckWireBytes(absl::StrCat(field, ".in_use_bytes"), message.in_use_bytes()));
  HF_RETURN_IF_ERROR(
      CheckWireBytes(absl::StrCat(field, ".working_bytes"), message.working_bytes()));
  phase.in_use_bytes = message.in_use_bytes();
  phase.working_bytes = message.working_bytes();
  return phase;
}

v1::BackwardPhase PhaseToProto(const BackwardPhase& phase) {
  v1::BackwardPhase message;
  message.set_reads(phase.reads);
  message.set_in_use_bytes(phase.in_use_bytes);
  message.set_working_bytes(phase.working_bytes);
  return message;
}

absl::StatusOr<CopySlowdown> SlowdownFromProto(const v1::CopySlowdown& message,
                                               const std::string& field) {
  HF_RETURN_IF_ERROR(CheckWireNumber(absl::StrCat(field, ".out"), message.out()));
  HF_RETURN_IF_ERROR(CheckWireNumber(absl::StrCat(field, ".in"), message.in()));
  return CopySlowdown{message.out(), message.in()};
}

void SlowdownToProto(const CopySlowdown& slowdown, v1::CopySlowdown* message) {
  message->set_out(slowdown.out);
  message->set_in(slowdown.in);
}

// Absent is -1; present is a budget, and 0 means none.
absl::StatusOr<Bytes> Budget(const std::string& field, bool present, int64_t bytes) {
  if (!present) return Bytes{-1};
  if (bytes >= 0) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", bytes, "; 0 means none, and leaving it out lets the GPU's usable bytes bind"));
}

}  // namespace

absl::StatusOr<BlockProfile> FromProto(const v1::BlockProfile& message, const std::string& field) {
  BlockProfile block;
  block.name = message.name();
  HF_ASSIGN_OR_RETURN(block.forward,
                      WireDuration(absl::StrCat(field, ".forward_s"), message.forward_s()));
  HF_ASSIGN_OR_RETURN(block.backward,
                      WireDuration(absl::StrCat(field, ".backward_s"), message.backward_s()));
  for (int s = 0; s < message.storages_size(); ++s) {
    HF_ASSIGN_OR_RETURN(
        StorageProfile storage,
        StorageFromProto(message.storages(s), absl::StrCat(field, ".storages[", s, "]")));
    block.storages.push_back(std::move(storage));
  }
  block.recomputable = !message.not_recomputable();
  block.splittable = message.splittable();
  HF_RETURN_IF_ERROR(
      CheckWireBytes(absl::StrCat(field, ".transient_bytes"), message.transient_bytes()));
  block.transient_bytes = message.transient_bytes();
  HF_RETURN_IF_ERROR(
      CheckWireBytes(absl::StrCat(field, ".gradient_bytes"), message.gradient_bytes()));
  block.gradient_bytes = message.gradient_bytes();
  block.read_any_time = message.read_any_time();
  HF_RETURN_IF_ERROR(CheckWireBytes(absl::StrCat(field, ".rerun_bytes"), message.rerun_bytes()));
  block.rerun_bytes = message.rerun_bytes();
  HF_RETURN_IF_ERROR(
      CheckWireBytes(absl::StrCat(field, ".rerun_working_bytes"), message.rerun_working_bytes()));
  block.rerun_working_bytes = message.rerun_working_bytes();
  for (int p = 0; p < message.phases_size(); ++p) {
    HF_ASSIGN_OR_RETURN(const BackwardPhase phase,
                        PhaseFromProto(message.phases(p), absl::StrCat(field, ".phases[", p, "]")));
    block.phases.push_back(phase);
  }
  for (int s = 0; s < message.selective_size(); ++s) {
    HF_ASSIGN_OR_RETURN(
        SelectiveStorage storage,
        SelectiveFromProto(message.selective(s), absl::StrCat(field, ".selective[", s, "]")));
    block.selective.push_back(std::move(storage));
  }
  HF_ASSIGN_OR_RETURN(block.selective_base, WireDuration(absl::StrCat(field, ".selective_base_s"),
                                                         message.selective_base_s()));
  return block;
}

absl::StatusOr<RankProblem> FromProto(const v1::RankProblem& message, const std::string& field) {
  RankProblem rank;
  rank.rank = message.rank();
  rank.gpu = message.gpu();
  for (int b = 0; b < message.blocks_size(); ++b) {
    HF_ASSIGN_OR_RETURN(BlockProfile block,
                        FromProto(message.blocks(b), absl::StrCat(field, ".blocks[", b, "]")));
    rank.blocks.push_back(std::move(block));
  }
  HF_RETURN_IF_ERROR(
      CheckWireBytes(absl::StrCat(field, ".resident_bytes"), message.resident_bytes()));
  HF_RETURN_IF_ERROR(
      CheckWireBytes(absl::StrCat(field, ".overhead_bytes"), message.overhead_bytes()));
  rank.resident_bytes = message.resident_bytes();
  rank.overhead_bytes = message.overhead_bytes();
  HF_ASSIGN_OR_RETURN(
      rank.budget, Budget(absl::StrCat(field, ".budget"), message.has_budget(), message.budget()));
  HF_ASSIGN_OR_RETURN(rank.activation_budget,
                      Budget(absl::StrCat(field, ".activation_budget"),
                             message.has_activation_budget(), message.activation_budget()));
  HF_ASSIGN_OR_RETURN(rank.peer_slowdown, SlowdownFromProto(message.peer_slowdown(),
                                                            absl::StrCat(field, ".peer_slowdown")));
  HF_ASSIGN_OR_RETURN(rank.host_slowdown, SlowdownFromProto(message.host_slowdown(),
                                                            absl::StrCat(field, ".host_slowdown")));
  return rank;
}

absl::StatusOr<DeviceProfile> FromProto(const v1::DeviceProfile& message,
                                        const std::string& field) {
  HF_RETURN_IF_ERROR(CheckWireBytes(absl::StrCat(field, ".usable_bytes"), message.usable_bytes()));
  HF_RETURN_IF_ERROR(
      CheckWireBytes(absl::StrCat(field, ".lendable_bytes"), message.lendable_bytes()));
  HF_RETURN_IF_ERROR(
      CheckWireBytes(absl::StrCat(field, ".transfer_bytes"), message.transfer_bytes()));
  return DeviceProfile{message.uuid(),         message.node(),           message.is_host(),
                       message.usable_bytes(), message.lendable_bytes(), message.transfer_bytes()};
}

absl::StatusOr<LinkProfile> FromProto(const v1::LinkProfile& message, const std::string& field) {
  HF_RETURN_IF_ERROR(
      CheckWireNumber(absl::StrCat(field, ".bytes_per_second"), message.bytes_per_second()));
  HF_RETURN_IF_ERROR(
      CheckWireNumber(absl::StrCat(field, ".compute_slowdown"), message.compute_slowdown()));
  LinkProfile link;
  link.from = message.from();
  link.to = message.to();
  link.bytes_per_second = message.bytes_per_second();
  HF_ASSIGN_OR_RETURN(link.latency,
                      WireDuration(absl::StrCat(field, ".latency_s"), message.latency_s()));
  link.kind = message.kind();
  link.shared_group = message.shared_group();
  link.compute_slowdown = message.compute_slowdown();
  return link;
}

absl::StatusOr<PlanProblem> FromProto(const v1::PlanProblem& message, const std::string& field) {
  PlanProblem problem;
  problem.job_id = message.job_id();
  for (int r = 0; r < message.ranks_size(); ++r) {
    HF_ASSIGN_OR_RETURN(RankProblem rank,
                        FromProto(message.ranks(r), absl::StrCat(field, ".ranks[", r, "]")));
    problem.ranks.push_back(std::move(rank));
  }
  for (int d = 0; d < message.devices_size(); ++d) {
    HF_ASSIGN_OR_RETURN(DeviceProfile device,
                        FromProto(message.devices(d), absl::StrCat(field, ".devices[", d, "]")));
    problem.devices.push_back(std::move(device));
  }
  for (int l = 0; l < message.links_size(); ++l) {
    HF_ASSIGN_OR_RETURN(LinkProfile link,
                        FromProto(message.links(l), absl::StrCat(field, ".links[", l, "]")));
    problem.links.push_back(std::move(link));
  }
  for (int t = 0; t < message.forbidden_tiers_size(); ++t) {
    HF_ASSIGN_OR_RETURN(const Tier tier, WireTier(absl::StrCat(field, ".forbidden_tiers[", t, "]"),
                                                  message.forbidden_tiers(t)));
    problem.forbidden_tiers.push_back(tier);
  }
  problem.level_first = message.level_first();
  problem.forbid_recompute = message.forbid_recompute();
  problem.forbid_selective = message.forbid_selective();
  return problem;
}

v1::BlockProfile ToProto(const BlockProfile& block) {
  v1::BlockProfile message;
  message.set_name(block.name);
  message.set_forward_s(absl::ToDoubleSeconds(block.forward));
  message.set_backward_s(absl::ToDoubleSeconds(block.backward));
  for (const StorageProfile& storage : block.storages) {
    *message.add_storages() = StorageToProto(storage);
  }
  message.set_not_recomputable(!block.recomputable);
  message.set_splittable(block.splittable);
  message.set_transient_bytes(block.transient_bytes);
  message.set_gradient_bytes(block.gradient_bytes);
  message.set_read_any_time(block.read_any_time);
  message.set_rerun_bytes(block.rerun_bytes);
  message.set_rerun_working_bytes(block.rerun_working_bytes);
  for (const BackwardPhase& phase : block.phases) *message.add_phases() = PhaseToProto(phase);
  for (const SelectiveStorage& storage : block.selective) {
    *message.add_selective() = SelectiveToProto(storage);
  }
  message.set_selective_base_s(absl::ToDoubleSeconds(block.selective_base));
  return message;
}

v1::RankProblem ToProto(const RankProblem& rank) {
  v1::RankProblem message;
  message.set_rank(rank.rank);
  message.set_gpu(rank.gpu);
  for (const BlockProfile& block : rank.blocks) *message.add_blocks() = ToProto(block);
  message.set_resident_bytes(rank.resident_bytes);
  message.set_overhead_bytes(rank.overhead_bytes);
  if (rank.budget >= 0) message.set_budget(rank.budget);
  if (rank.activation_budget >= 0) message.set_activation_budget(rank.activation_budget);
  SlowdownToProto(rank.peer_slowdown, message.mutable_peer_slowdown());
  SlowdownToProto(rank.host_slowdown, message.mutable_host_slowdown());
  return message;
}

v1::DeviceProfile ToProto(const DeviceProfile& device) {
  v1::DeviceProfile message;
  message.set_uuid(device.uuid);
  message.set_node(device.node);
  message.set_is_host(device.is_host);
  message.set_usable_bytes(device.usable_bytes);
  message.set_lendable_bytes(device.lendable_bytes);
  message.set_transfer_bytes(device.transfer_bytes);
  return message;
}

v1::LinkProfile ToProto(const LinkProfile& link) {
  v1::LinkProfile message;
  message.set_from(link.from);
  message.set_to(link.to);
  message.set_bytes_per_second(link.bytes_per_second);
  message.set_latency_s(absl::ToDoubleSeconds(link.latency));
  message.set_kind(link.kind);
  message.set_shared_group(link.shared_group);
  message.set_compute_slowdown(link.compute_slowdown);
  return message;
}

v1::PlanProblem ToProto(const PlanProblem& problem) {
  v1::PlanProblem message;
  message.set_job_id(problem.job_id);
  for (const RankProblem& rank : problem.ranks) *message.add_ranks() = ToProto(rank);
  for (const DeviceProfile& device : problem.devices) *message.add_devices() = ToProto(device);
  for (const LinkProfile& link : problem.links) *message.add_links() = ToProto(link);
  for (const Tier tier : problem.forbidden_tiers) {
    message.add_forbidden_tiers(static_cast<v1::Tier>(tier));
  }
  message.set_level_first(problem.level_first);
  message.set_forbid_recompute(problem.forbid_recompute);
  message.set_forbid_selective(problem.forbid_selective);
  return message;
}

}  // namespace hyperframes
