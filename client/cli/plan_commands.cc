#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "common/config_text.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Table::Align kRight = Table::Align::kRight;

absl::StatusOr<v1::FramePlan> FetchPlan(CommandLine* line) {
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  v1::GetPlanRequest request;
  request.set_job_id(line->positional()[0]);
  Progress progress(absl::StrCat("waiting for the plan from ", client->address()),
                    Progress::ForPeople());
  const Watched watched(&progress);
  return client->GetPlan(request);
}

void PrintRanks(const v1::FramePlan& plan, std::ostream* out) {
  Table table({{"RANK", kRight},
               {"ACTIVATIONS", kRight},
               {"KEEP", kRight},
               {"PEER", kRight},
               {"HOST", kRight},
               {"RECOMPUTED", kRight},
               {"ACTIVATION PEAK", kRight},
               {"PEAK", kRight},
               {"STEP", kRight},
               {"EXPOSED", kRight},
               {"RECOMPUTE", kRight}});
  for (const v1::RankPlan& rank : plan.ranks()) {
    table.AddRow({absl::StrCat(rank.rank()), FormatBytes(rank.activation_bytes()),
                  FormatBytes(rank.keep_bytes()), FormatBytes(rank.peer_bytes()),
                  FormatBytes(rank.host_bytes()), FormatBytes(rank.recomputed_bytes()),
                  FormatBytes(rank.predicted_activation_peak()), FormatBytes(rank.predicted_peak()),
                  SecondsText(rank.predicted_step_s()), SecondsText(rank.predicted_exposed_s()),
                  SecondsText(rank.predicted_recompute_s())});
  }
  table.Print(out);
}

void PrintLeases(const v1::FramePlan& plan, std::ostream* out) {
  Table table(
      {{"RANK", kRight}, {"LENDER"}, {"NODE"}, {"TIER"}, {"LEASE", kRight}, {"STAGING", kRight}});
  bool any = false;
  for (const v1::RankPlan& rank : plan.ranks()) {
    for (const v1::LeaseNeed& lease : rank.leases()) {
      any = true;
      table.AddRow({absl::StrCat(rank.rank()), lease.device(), lease.node(), TierText(lease.tier()),
                    FormatBytes(lease.bytes()), FormatBytes(lease.staging_bytes())});
    }
  }
  if (!any) return;
  *out << "\n";
  table.Print(out);
}

// "4 keep, 2 peer": where a block's storages and its selected operators' outputs wait.
std::string TierCounts(const v1::BlockDecision& block) {
  std::map<v1::Tier, int> counts;
  for (const v1::StorageDecision& storage : block.storages()) ++counts[storage.tier()];
  for (const v1::StorageDecision& storage : block.selected()) ++counts[storage.tier()];
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", TierText(entry.first));
  });
}

absl::Status NoSuchBlock(const v1::FramePlan& plan, const std::string& name) {
  std::set<std::string> names;
  for (const v1::RankPlan& rank : plan.ranks()) {
    for (const v1::BlockDecision& block : rank.blocks()) names.insert(block.name());
  }
  const std::string near = NearestName(name, {names.begin(), names.end()});
  return absl::NotFoundError(
      absl::StrCat("the plan has no block \"", name, "\"",
                   near.empty() ? absl::StrCat("; it has ", names.size(), ", listed without a name")
                                : absl::StrCat("; did you mean ", near, "?")));
}

}  // namespace

absl::StatusOr<int> RunPlan(CommandLine* line) {
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(1, 1));
  if (!run) return kExitOk;
  HF_ASSIGN_OR_RETURN(const v1::FramePlan plan, FetchPlan(line));
  if (line->json()) {
    HF_RETURN_IF_ERROR(line->PrintJson(plan));
    return kExitOk;
  }
  std::ostream* const out = line->out();
  *out << "plan " << Printable(plan.id()) << " epoch " << plan.epoch() << ", water level max/mean "
       << absl::StrFormat("%.2f", plan.water_level_max_over_mean()) << "\n\n";
  PrintRanks(plan, out);
  PrintLeases(plan, out);
  if (!plan.advice().empty()) *out << "\n" << Printable(plan.advice()) << "\n";
  return kExitOk;
}

absl::StatusOr<int> RunExplain(CommandLine* line) {
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(1, 2));
  if (!run) return kExitOk;
  const std::string only = line->positional().size() > 1 ? line->positional()[1] : "";
  HF_ASSIGN_OR_RETURN(v1::FramePlan plan, FetchPlan(line));
  Table table(
      {{"RANK", kRight}, {"BLOCK"}, {"POLICY"}, {"WHERE"}, {"CONFIDENCE", kRight}, {"REASON"}});
  v1::FramePlan kept = plan;
  bool any = false;
  for (int i = 0; i < plan.ranks_size(); ++i) {
    kept.mutable_ranks(i)->clear_blocks();
    for (const v1::BlockDecision& block : plan.ranks(i).blocks()) {
      if (!only.empty() && block.name() != only) continue;
      any = true;
      *kept.mutable_ranks(i)->add_blocks() = block;
      table.AddRow({absl::StrCat(plan.ranks(i).rank()), block.name(), PolicyText(block.policy()),
                    TierCounts(block), absl::StrFormat("%.2f", block.confidence()),
                    block.reason()});
    }
  }
  if (!only.empty() && !any) return NoSuchBlock(plan, only);
  if (line->json()) {
    HF_RETURN_IF_ERROR(line->PrintJson(kept));
    return kExitOk;
  }
  table.Print(line->out());
  return kExitOk;
}

}  // namespace hyperframes
