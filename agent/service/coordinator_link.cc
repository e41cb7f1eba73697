#include "agent/service/coordinator_link.h"

#include <glog/logging.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "agent/service/conversions.h"
#include "common/clock.h"
#include "common/grpc_status.h"
#include "common/protocol_version.h"
#include "common/random_id.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// How often the report thread looks for changes that nobody announced.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr absl::Duration kUnwantedGrace = absl::Seconds(10);

std::unique_ptr<v1::Membership::Stub> MakeStub(const std::string& target, const char* purpose) {
  grpc::ChannelArguments arguments;
  // The defaults wait up to two minutes; a coordinator that is back must see us within seconds.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // Channels with different arguments do not share a connection: a heartbeat must not queue behind
  // a large report.
  arguments.SetString("hyperframes.purpose", purpose);
  return v1::Membership::NewStub(
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
}

}  // namespace

// One call with a deadline, which the link's end cancels.
class CoordinatorLink::Call {
 public:
  Call(CoordinatorLink* link, absl::Duration timeout) : link_(link) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    MutexLock lock(&link_->mutex_);
    link_->calls_.push_back(&context_);
    if (link_->stopping_) context_.TryCancel();
  }
  ~Call() {
    MutexLock lock(&link_->mutex_);
    auto& calls = link_->calls_;
    calls.erase(std::find(calls.begin(), calls.end(), &context_));
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  CoordinatorLink* const link_;
  grpc::ClientContext context_;
};

CoordinatorLink::CoordinatorLink(CoordinatorLinkOptions options, Node* node, EpochFence* fence)
    : options_(std::move(options)),
      node_(node),
      fence_(fence),
      incarnation_(RandomIncarnation()),
      beat_stub_(MakeStub(options_.coordinator, "heartbeat")),
      report_stub_(MakeStub(options_.coordinator, "report")),
      last_beat_(MonotonicClock()->Now()) {
  {
    MutexLock lock(&mutex_);
    links_ = options_.links;
  }
  beat_thread_ = std::thread([this] { BeatLoop(); });
  report_thread_ = std::thread([this] { ReportLoop(); });
}

CoordinatorLink::~CoordinatorLink() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    for (grpc::ClientContext* call : calls_) call->TryCancel();
    changed_.NotifyAll();
  }
  beat_thread_.join();
  report_thread_.join();
}

void CoordinatorLink::SetLinks(std::vector<v1::LinkProfile> links) {
  const auto same = [](const v1::LinkProfile& a, const v1::LinkProfile& b) {
    return a.SerializeAsString() == b.SerializeAsString();
  };
  MutexLock lock(&mutex_);
  if (std::equal(links.begin(), links.end(), links_.begin(), links_.end(), same)) return;
  links_ = std::move(links);
  links_changed_ = true;
  notified_ = true;
  changed_.NotifyAll();
}

void CoordinatorLink::NotifyChanged() {
  MutexLock lock(&mutex_);
  notified_ = true;
  changed_.NotifyAll();
}

CoordinatorLink::State CoordinatorLink::state() const {
  MutexLock lock(&mutex_);
  return {registered_, MonotonicClock()->Now() - last_beat_, last_error_};
}

bool CoordinatorLink::Pause(absl::Duration duration) {
  MutexLock lock(&mutex_);
  return !changed_.WaitFor(&mutex_, duration,
                           [this]() HF_NO_THREAD_SAFETY_ANALYSIS { return stopping_; });
}

void CoordinatorLink::Lost(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (stopping_) return;
  const std::string message(status.message());
  // One line for each new trouble, not one for each attempt.
  if (message != last_error_) {
    LOG(WARNING) << "coordinator " << options_.coordinator << ": " << status
                 << "; workers and leases go on, trying again";
  }
  last_error_ = message;
}

void CoordinatorLink::BeatLoop() {
  while (true) {
    absl::Duration interval;
    bool registered = false;
    {
      MutexLock lock(&mutex_);
      interval = heartbeat_interval_;
      registered = registered_;
    }
    const absl::Time began = MonotonicClock()->Now();
    if (registered) {
      const absl::Status status = Beat();
      if (!status.ok()) Lost(status);
    } else {
      interval = kLook;
    }
    if (!Pause(std::max(absl::ZeroDuration(), interval - (MonotonicClock()->Now() - began)))) {
      return;
    }
  }
}

absl::Status CoordinatorLink::Beat() {
  v1::HeartbeatRequest request;
  request.set_node(node_->options().name);
  request.set_incarnation(incarnation_);
  request.set_sequence(++sequence_);
  v1::HeartbeatResponse response;
  Call call(this, std::max(options_.rpc_timeout / 5, absl::Milliseconds(500)));
  HF_RETURN_IF_ERROR(FromGrpc(beat_stub_->Heartbeat(call.context(), request, &response)));
  HF_RETURN_IF_ERROR(fence_->Pass(response.epoch()));
  MutexLock lock(&mutex_);
  last_beat_ = MonotonicClock()->Now();
  if (!response.known()) {
    registered_ = false;
    changed_.NotifyAll();
  }
  return absl::OkStatus();
}

void CoordinatorLink::ReportLoop() {
  Backoff backoff(options_.backoff, incarnation_);
  absl::Time last_report = absl::InfinitePast();
  while (true) {
    bool registered = false;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
      registered = registered_ && !links_changed_;
    }
    absl::Status status;
    if (!registered) {
      status = Register();
      last_report = MonotonicClock()->Now();
    } else if (MonotonicClock()->Now() - last_report >= options_.report_interval ||
               Fingerprint() != last_reported_) {
      node_->Housekeep();
      status = Report();
      last_report = MonotonicClock()->Now();
    }
    if (status.ok()) {
      backoff.Reset();
      MutexLock lock(&mutex_);
      changed_.WaitFor(&mutex_, kLook, [this]() HF_NO_THREAD_SAFETY_ANALYSIS {
        return stopping_ || notified_ || !registered_;
      });
      notified_ = false;
      continue;
    }
    Lost(status);
    if (!Pause(backoff.Next())) return;
  }
}

template <typename Request>
void CoordinatorLink::FillInventory(Request* request, std::vector<LeaseRecord>* leases) {
  request->set_node(node_->options().name);
  request->set_incarnation(incarnation_);
  for (v1::GpuInfo& gpu : GpusOf(node_)) *request->add_gpus() = std::move(gpu);
  *leases = node_->leases()->Report();
  for (const LeaseRecord& lease : *leases) *request->add_leases() = ToProto(lease);
  for (const WorkerInfo& worker : node_->Workers()) {
    *request->add_workers() = ToProto(worker, node_->counters().Of(worker.spec.worker_id));
  }
  for (const NetworkFigure& figure : node_->network()->Figures()) {
    *request->add_network_measured() = ToProto(figure);
  }
}

// The answer proves that the ends in `request` have arrived.
template <typename Request>
void CoordinatorLink::AcknowledgeEnds(const Request& request,
                                      const std::vector<LeaseRecord>& leases) {
  node_->leases()->AcknowledgeReleased(leases);
  std::vector<std::string> ended;
  for (const v1::WorkerReport& worker : request.workers()) {
    if (worker.state() == v1::WORKER_STATE_EXITED) ended.push_back(worker.worker_id());
  }
  node_->Acknowledge(ended);
}

template <typename Response>
void CoordinatorLink::Obey(const Response& response) {
  for (const std::string& lease_id : response.release_leases()) {
    if (node_->leases()->Release(lease_id, "unwanted")) {
      LOG(INFO) << "lease " << lease_id << " released: the coordinator no longer wants it";
    }
  }
  node_->supervisor()->KeepJobs(
      {response.unfinished_jobs().begin(), response.unfinished_jobs().end()});
  for (const std::string& worker_id : response.stop_workers()) {
    if (node_->DropWorker(worker_id, kUnwantedGrace).ok()) {
      LOG(INFO) << "worker " << worker_id << " stopped: the coordinator no longer wants it";
    }
  }
}

std::string CoordinatorLink::Fingerprint() const {
  std::string text;
  for (const LeaseRecord& lease : node_->leases()->Report()) {
    text += lease.lease_id + LeaseStateName(lease.state);
  }
  for (const WorkerInfo& worker : node_->Workers()) {
    text += worker.spec.worker_id + std::to_string(static_cast<int>(worker.status.state)) + "/" +
            std::to_string(worker.status.worker.pid);
  }
  return text;
}

absl::Status CoordinatorLink::CallRegister(const v1::RegisterRequest& request,
                                           v1::RegisterResponse* response) {
  Call call(this, options_.rpc_timeout);
  return FromGrpc(report_stub_->Register(call.context(), request, response));
}

absl::Status CoordinatorLink::Register() {
  v1::RegisterRequest request;
  request.mutable_version()->set_major(kProtocolMajor);
  request.mutable_version()->set_minor(kProtocolMinor);
  std::vector<LeaseRecord> leases;
  last_reported_ = Fingerprint();
  FillInventory(&request, &leases);
  request.set_agent_address(options_.agent_address);
  request.set_http_address(options_.http_address);
  request.set_worker_socket(node_->worker_socket());
  request.set_host_lendable_bytes(HostLendable(node_));
  *request.mutable_network() = options_.network;
  {
    MutexLock lock(&mutex_);
    for (const v1::LinkProfile& link : links_) *request.add_links() = link;
    links_changed_ = false;
  }
  v1::RegisterResponse response;
  absl::Status registered = CallRegister(request, &response);
  if (!registered.ok()) {
    MutexLock lock(&mutex_);
    links_changed_ = true;
    return registered;
  }
  HF_RETURN_IF_ERROR(CheckProtocol(response.version().major(), response.version().minor(),
                                   "coordinator " + options_.coordinator));
  HF_RETURN_IF_ERROR(fence_->Pass(response.epoch()));
  AcknowledgeEnds(request, leases);
  Obey(response);
  LOG(INFO) << "registered with coordinator " << options_.coordinator << ", epoch "
            << response.epoch();
  MutexLock lock(&mutex_);
  registered_ = true;
  last_error_.clear();
  last_beat_ = MonotonicClock()->Now();
  const absl::Duration wanted = absl::Seconds(response.heartbeat_interval_s());
  heartbeat_interval_ = std::clamp(wanted, absl::Milliseconds(10), absl::Seconds(1));
  return absl::OkStatus();
}

absl::Status CoordinatorLink::Report() {
  v1::ReportRequest request;
  std::vector<LeaseRecord> leases;
  const std::string fingerprint = Fingerprint();
  FillInventory(&request, &leases);
  v1::ReportResponse response;
  Call call(this, options_.rpc_timeout);
  HF_RETURN_IF_ERROR(FromGrpc(report_stub_->Report(call.context(), request, &response)));
  HF_RETURN_IF_ERROR(fence_->Pass(response.epoch()));
  {
    MutexLock lock(&mutex_);
    last_error_.clear();
    if (!response.known()) {
      registered_ = false;
      return absl::OkStatus();
    }
  }
  last_reported_ = fingerprint;
  AcknowledgeEnds(request, leases);
  Obey(response);
  return absl::OkStatus();
}

}  // namespace hyperframes
