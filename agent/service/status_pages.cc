#include "agent/service/status_pages.h"

#include <nlohmann/json.hpp>
#include <string>

#include "agent/service/networks.h"

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

HttpResponse Metrics(Node* node, const CoordinatorLink* link, const LinkSurvey* survey) {
  NodeSample sample = node->Sample();
  const LinkReport links = survey == nullptr ? LinkReport() : survey->report();
  sample.links_measured = static_cast<int64_t>(links.links.size());
  for (const UnmeasuredLink& unmeasured : links.unmeasured) {
    ++sample.links_unmeasured[unmeasured.reason];
  }
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

Json Links(const LinkSurvey& survey) {
  const LinkReport report = survey.report();
  Json links = {
      {"done", survey.done()}, {"measured", Json::array()}, {"unmeasured", Json::array()}};
  for (const v1::LinkProfile& link : report.links) {
    if (links["measured"].size() >= kMostListed) break;
    links["measured"].push_back({{"from", link.from()},
                                 {"to", link.to()},
                                 {"kind", link.kind()},
                                 {"bytes_per_second", link.bytes_per_second()},
                                 {"latency_s", link.latency_s()}});
  }
  for (const UnmeasuredLink& link : report.unmeasured) {
    if (links["unmeasured"].size() >= kMostListed) break;
    links["unmeasured"].push_back(
        {{"from", link.from}, {"to", link.to}, {"reason", link.reason}, {"message", link.message}});
  }
  return links;
}

Json Networks() {
  Json networks = Json::array();
  for (const NetworkDevice& device : ReadNetworks()) {
    networks.push_back({{"name", device.name},
                        {"kind", device.kind},
                        {"state", device.state},
                        {"promised_bytes_per_second", device.bytes_per_second}});
  }
  return networks;
}

Json MeasuredNetwork(NetworkTable* table) {
  Json measured = Json::array();
  for (const NetworkFigure& figure : table->Figures()) {
    measured.push_back({{"node", figure.node},
                        {"bytes_per_second", figure.bytes_per_second},
                        {"age_s", absl::ToDoubleSeconds(figure.age)},
                        {"bytes", figure.bytes}});
  }
  return measured;
}

HttpResponse Status(Node* node, const CoordinatorLink* link, const LinkSurvey* survey) {
  Json page = {{"node", node->options().name}, {"worker_socket", node->worker_socket()}};
  page["backend"] = node->machine()->backend();
  page["networks"] = Networks();
  page["network_measured"] = MeasuredNetwork(node->network());
  if (survey != nullptr) page["links"] = Links(*survey);
  page["registered"] = link != nullptr && link->state().registered;
  page["coordinator_error"] = link == nullptr ? "" : link->state().last_error;
  page["devices"] = Json::array();
  for (const DeviceUsage& device : node->leases()->Usage()) {
    page["devices"].push_back({{"uuid", device.device},
                               {"total_bytes", device.total_bytes},
                               {"reserve_bytes", device.reserve_bytes},
                               {"lent_bytes", device.lent_bytes},
                               {"occupied_bytes", device.occupied_bytes},
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

HttpServer::Handlers StatusPages(Node* node, const std::atomic<CoordinatorLink*>* link,
                                 const LinkSurvey* survey) {
  return {{"/metrics", [=] { return Metrics(node, link->load(), survey); }},
          {"/livez",
           [] {
             return HttpResponse{200, "text/plain", "ok\n"};
           }},
          {"/readyz", [=] { return Ready(link->load()); }},
          {"/statusz", [=] { return Status(node, link->load(), survey); }}};
}

}  // namespace hyperframes
