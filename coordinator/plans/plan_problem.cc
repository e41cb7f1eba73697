#include "coordinator/plans/plan_problem.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/units.h"
#include "coordinator/plans/network_links.h"

namespace hyperframes {
namespace {

std::set<std::string> ComputingGpus(const std::vector<JobBook::Record>& active) {
  std::set<std::string> computing;
  for (const JobBook::Record& job : active) {
    for (const v1::JobWorkerRecord& worker : job->workers()) {
      if (!worker.released()) computing.insert(worker.gpu());
    }
  }
  return computing;
}

// By device: our records, and what agents hold that we have no record of.
std::map<std::string, Bytes> LentByDevice(const v1::JobRecord& job, const std::vector<Node>& nodes,
                                          const std::vector<v1::LeaseRecord>& leases) {
  std::map<std::string, Bytes> lent;
  std::set<std::string> known;
  for (const v1::LeaseRecord& lease : leases) {
    known.insert(lease.lease_id());
    lent[lease.device()] += lease.bytes();
  }
  for (const Node& node : nodes) {
    for (const v1::LeaseReport& report : node.info.leases()) {
      // This job's own leases without a record were just given back; the report is older.
      if (report.state() == v1::LEASE_STATE_RELEASED || report.job_id() == job.id() ||
          known.count(report.lease_id()) > 0) {
        continue;
      }
      lent[report.device()] += report.bytes();
    }
  }
  return lent;
}

std::vector<v1::DeviceProfile> DevicesOf(const Node& node, const std::set<std::string>& computing,
                                         const std::map<std::string, Bytes>& lent) {
  std::vector<v1::DeviceProfile> devices;
  const auto lent_on = [&](const std::string& uuid) {
    const auto found = lent.find(uuid);
    return found == lent.end() ? Bytes{0} : found->second;
  };
  const bool alive = node.info.state() == v1::NODE_STATE_ALIVE;
  for (const v1::GpuInfo& gpu : node.info.gpus()) {
    v1::DeviceProfile device;
    device.set_uuid(gpu.uuid());
    device.set_node(node.info.node());
    device.set_transfer_bytes(node.info.network().transfer_bytes());
    device.set_usable_bytes(std::max<Bytes>(0, gpu.total_bytes() - lent_on(gpu.uuid())));
    const bool lends = alive && !gpu.unhealthy() && computing.count(gpu.uuid()) == 0;
    const Bytes left =
        gpu.total_bytes() - gpu.reserve_bytes() - gpu.occupied_bytes() - lent_on(gpu.uuid());
    device.set_lendable_bytes(lends ? std::max<Bytes>(0, left) : 0);
    devices.push_back(std::move(device));
  }
  v1::DeviceProfile host;
  host.set_uuid(absl::StrCat("host:", node.info.node()));
  host.set_node(node.info.node());
  host.set_is_host(true);
  host.set_usable_bytes(node.info.host_lendable_bytes());
  const Bytes left = node.info.host_lendable_bytes() - lent_on(host.uuid());
  host.set_lendable_bytes(alive ? std::max<Bytes>(0, left) : 0);
  devices.push_back(std::move(host));
  return devices;
}

// Scales what the devices lend, as the tier, to `quota`, and returns what they leave of it. Every
// device keeps its share, so that no rank eats the quota of another. 0: no quota, -1 is returned.
Bytes ApplyQuota(Bytes quota, bool host, std::vector<v1::DeviceProfile>* devices) {
  double sum = 0;
  for (const auto& device : *devices) {
    if (device.is_host() == host) sum += static_cast<double>(device.lendable_bytes());
  }
  if (quota < 0 || sum <= static_cast<double>(quota)) {
    return quota < 0 ? -1 : quota - static_cast<Bytes>(sum);
  }
  for (auto& device : *devices) {
    if (device.is_host() != host) continue;
    device.set_lendable_bytes(static_cast<Bytes>(static_cast<double>(device.lendable_bytes()) *
                                                 (static_cast<double>(quota) / sum)));
  }
  return 0;
}

// The ranks' own nodes first: what they lend comes off the job's quotas before other nodes are
// asked.
void AddDevices(const v1::JobSpec& spec, const std::vector<Node>& nodes,
                const std::set<std::string>& own_nodes, const std::set<std::string>& computing,
                const std::map<std::string, Bytes>& lent, v1::PlanProblem* problem) {
  std::vector<v1::DeviceProfile> own;
  std::vector<v1::DeviceProfile> others;
  std::vector<const Node*> from;
  for (const Node& node : nodes) {
    if (own_nodes.count(node.info.node()) > 0) from.push_back(&node);
  }
  for (const Node& node : nodes) {
    const bool is_own = own_nodes.count(node.info.node()) > 0;
    const bool reached = std::any_of(from.begin(), from.end(),
                                     [&node](const Node* one) { return AreConnected(*one, node); });
    if (!is_own && !reached) continue;
    auto& list = is_own ? own : others;
    for (v1::DeviceProfile& device : DevicesOf(node, computing, lent)) {
      list.push_back(std::move(device));
    }
    if (!is_own) continue;
    for (const v1::LinkProfile& link : node.info.links()) *problem->add_links() = link;
  }
  const auto unless_none = [](Bytes quota) { return quota > 0 ? quota : -1; };
  const Bytes left = ApplyQuota(unless_none(spec.lent_bytes_quota()), /*host=*/false, &own);
  ApplyQuota(unless_none(spec.host_bytes_quota()), /*host=*/true, &own);
  ApplyQuota(left, /*host=*/false, &others);
  for (const v1::DeviceProfile& device : own) *problem->add_devices() = device;
  others.insert(others.end(), own.begin(), own.end());
  AddNetworkLinks(nodes, others, problem);
}

}  // namespace

v1::PlanProblem BuildPlanProblem(const v1::JobRecord& job,
                                 const std::vector<v1::CreatePlanRequest>& requests,
                                 const std::vector<Node>& nodes,
                                 const std::vector<JobBook::Record>& active,
                                 const std::vector<v1::LeaseRecord>& leases) {
  v1::PlanProblem problem;
  problem.set_job_id(job.id());
  std::set<std::string> own_nodes;
  std::set<v1::Tier> forbidden;
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    v1::RankProblem* out = problem.add_ranks();
    *out = requests[rank].rank();
    out->set_rank(static_cast<int32_t>(rank));
    out->set_gpu(job.workers(static_cast<int>(rank)).gpu());
    own_nodes.insert(job.workers(static_cast<int>(rank)).node());
    for (const int tier : requests[rank].forbidden_tiers()) {
      forbidden.insert(static_cast<v1::Tier>(tier));
    }
    // What one rank asks binds all: a plan is the job's.
    problem.set_level_first(problem.level_first() || requests[rank].level_first());
    problem.set_forbid_recompute(problem.forbid_recompute() || requests[rank].forbid_recompute());
    problem.set_forbid_selective(problem.forbid_selective() || requests[rank].forbid_selective());
  }
  for (const v1::Tier tier : forbidden) problem.add_forbidden_tiers(tier);
  const std::set<std::string> computing = ComputingGpus(active);
  const std::map<std::string, Bytes> lent = LentByDevice(job, nodes, leases);
  AddDevices(job.spec(), nodes, own_nodes, computing, lent, &problem);
  return problem;
}

absl::Status CheckPlan(const v1::JobRecord& job, const v1::PlanProblem& problem,
                       const v1::FramePlan& plan) {
  if (plan.ranks_size() != problem.ranks_size()) {
    return absl::InternalError(absl::StrCat("the planner answered ", plan.ranks_size(), " of ",
                                            problem.ranks_size(), " ranks"));
  }
  std::map<std::string, Bytes> left;
  std::map<std::string, std::string> node_of;
  for (const v1::DeviceProfile& device : problem.devices()) {
    left[device.uuid()] = device.lendable_bytes();
    node_of[device.uuid()] = device.node();
  }
  std::set<std::pair<std::string, std::string>> linked;
  for (const v1::LinkProfile& link : problem.links()) linked.emplace(link.from(), link.to());
  Bytes lent = 0;
  Bytes host = 0;
  for (const v1::RankPlan& rank : plan.ranks()) {
    if (rank.rank() < 0 || rank.rank() >= job.workers_size()) {
      return absl::InternalError(absl::StrCat("the planner answered rank ", rank.rank()));
    }
    const v1::JobWorkerRecord& worker = job.workers(rank.rank());
    for (const v1::LeaseNeed& need : rank.leases()) {
      const auto device = left.find(need.device());
      const bool near = device != left.end() && node_of[need.device()] == worker.node();
      if (need.bytes() <= 0 || device == left.end() || device->second < need.bytes() ||
          (!near && linked.count({worker.gpu(), need.device()}) == 0)) {
        return absl::InternalError(absl::StrCat("the planner leases ", FormatBytes(need.bytes()),
                                                " on ", need.device(), " to rank ", rank.rank(),
                                                ", which was not offered"));
      }
      device->second -= need.bytes();
      (need.tier() == v1::TIER_HOST ? host : lent) += need.bytes();
    }
  }
  const auto over = [](const char* name, Bytes bytes, Bytes quota) {
    return absl::ResourceExhaustedError(absl::StrCat("the plan needs ", FormatBytes(bytes),
                                                     ", over the job's ", name, " of ",
                                                     FormatBytes(quota), "; raise it"));
  };
  if (job.spec().lent_bytes_quota() > 0 && lent > job.spec().lent_bytes_quota()) {
    return over("lent_bytes_quota", lent, job.spec().lent_bytes_quota());
  }
  if (job.spec().host_bytes_quota() > 0 && host > job.spec().host_bytes_quota()) {
    return over("host_bytes_quota", host, job.spec().host_bytes_quota());
  }
  return absl::OkStatus();
}

void NameLenders(const v1::PlanProblem& problem, v1::FramePlan* plan) {
  std::map<std::string, std::string> node_of;
  for (const v1::DeviceProfile& device : problem.devices()) node_of[device.uuid()] = device.node();
  for (v1::RankPlan& rank : *plan->mutable_ranks()) {
    for (v1::LeaseNeed& need : *rank.mutable_leases()) need.set_node(node_of[need.device()]);
  }
}

}  // namespace hyperframes
