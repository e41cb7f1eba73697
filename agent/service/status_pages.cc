#include "agent/service/status_pages.h"

#include <nlohmann/json.hpp>
#include <string>

namespace hyperframes {
namespace {

using Json = nlohmann::json;

// Bounds the page: a node may hold tens of thousands of leases.
constexpr size_t kMostListed = 1000;

const char* StateName(WorkerState state) {
  return state == WorkerState::kStarting   ? "STARTING"
         : state == WorkerState::kRunning  ? "RUNNING"
         : state == WorkerState::kStopping ? "STOPPING"
                                           : "EXITED";
}

HttpResponse Metrics(Node* node, const CoordinatorLink* link) {
  NodeSample sample = node->Sample();
  if (link != nullptr) {
    const CoordinatorLink::State state = link->state();
    sample.registered = state.registered;
    sample.heartbeat_gap_s = absl::ToDoubleSeconds(state.heartbeat_gap);
  }
  return {200, "text/plain; version=0.0.4; charset=utf-8", ExportMetrics(sample)};
}

HttpResponse Ready(const CoordinatorLink* link) {
  if (link == nullptr) return {503, "text/plain; charset=utf-8", "starting\n"};
  const CoordinatorLink::State state = link->state();
  if (state.registered && state.last_error.empty()) return {200, "text/plain", "ok\n"};
  return {503, "text/plain; charset=utf-8",
          "the coordinator does not know this agent: " + state.last_error + "\n"};
}

HttpResponse Status(Node* node, const CoordinatorLink* link) {
  Json page = {{"node", node->options().name}, {"worker_socket", node->worker_socket()}};
  page["registered"] = link != nullptr && link->state().registered;
  page["coordinator_error"] = link == nullptr ? "" : link->state().last_error;
  page["devices"] = Json::array();
  for (const DeviceUsage& device : node->leases()->Usage()) {
    page["devices"].push_back({{"uuid", device.device},
                               {"total_bytes", device.total_bytes},
                               {"reserve_bytes", device.reserve_bytes},
                               {"lent_bytes", device.lent_bytes},
                               {"awaiting_workers", device.awaiting_workers}});
  }
  page["workers"] = Json::array();
  for (const WorkerInfo& worker : node->Workers()) {
    page["workers"].push_back({{"worker_id", worker.spec.worker_id},
                               {"state", StateName(worker.status.state)},
                               {"pid", worker.status.worker.pid},
                               {"adopted", worker.adopted},
                               {"attached", worker.attached},
                               {"message", worker.status.message}});
  }
  page["leases"] = Json::array();
  for (const LeaseRecord& lease : node->leases()->Report()) {
    if (page["leases"].size() >= kMostListed) break;
    page["leases"].push_back({{"lease_id", lease.lease_id},
                              {"job_id", lease.job_id},
                              {"rank", lease.rank},
                              {"device", lease.device},
                              {"tier", TierName(lease.tier)},
                              {"bytes", lease.bytes},
                              {"state", LeaseStateName(lease.state)},
                              {"release_reason", lease.release_reason}});
  }
  return {
      200, "application/json",
      page.dump(/*indent=*/2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n"};
}

}  // namespace

HttpServer::Handlers StatusPages(Node* node, const std::atomic<CoordinatorLink*>* link) {
  return {{"/metrics", [=] { return Metrics(node, link->load()); }},
          {"/livez",
           [] {
             return HttpResponse{200, "text/plain", "ok\n"};
           }},
          {"/readyz", [=] { return Ready(link->load()); }},
          {"/statusz", [=] { return Status(node, link->load()); }}};
}

}  // namespace hyperframes
