// A coordinator's membership, scripted, for tests of the agent.
#ifndef HYPERFRAMES_AGENT_SERVICE_FAKE_MEMBERSHIP_H_
#define HYPERFRAMES_AGENT_SERVICE_FAKE_MEMBERSHIP_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "hyperframes/v1/membership.grpc.pb.h"

namespace hyperframes {

class FakeMembership final : public v1::Membership::Service {
 public:
  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    MutexLock lock(&mutex);
    registered.push_back(*request);
    response->mutable_version()->set_major(1);
    response->set_epoch(epoch);
    response->set_heartbeat_interval_s(0.02);
    for (const std::string& worker : stop_workers) response->add_stop_workers(worker);
    known = true;
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*,
                         v1::HeartbeatResponse* response) override {
    MutexLock lock(&mutex);
    ++beats;
    response->set_known(known);
    response->set_epoch(epoch);
    return grpc::Status::OK;
  }
  grpc::Status Report(grpc::ServerContext*, const v1::ReportRequest* request,
                      v1::ReportResponse* response) override {
    MutexLock lock(&mutex);
    reports.push_back(*request);
    changed.Wait(&mutex, [this] { return !hold_reports; });
    response->set_known(known);
    response->set_epoch(epoch);
    for (const std::string& lease : release_leases) response->add_release_leases(lease);
    return grpc::Status::OK;
  }
  size_t Registrations() {
    MutexLock lock(&mutex);
    return registered.size();
  }
  int Beats() {
    MutexLock lock(&mutex);
    return beats;
  }
  bool Reported(const std::function<bool(const v1::ReportRequest&)>& wanted) {
    MutexLock lock(&mutex);
    return std::any_of(reports.begin(), reports.end(), wanted);
  }

  Mutex mutex;
  CondVar changed;
  std::vector<v1::RegisterRequest> registered;
  std::vector<v1::ReportRequest> reports;
  std::vector<std::string> release_leases;
  std::vector<std::string> stop_workers;
  int beats = 0;
  int64_t epoch = 5;
  bool known = true;
  bool hold_reports = false;
};

inline std::unique_ptr<grpc::Server> Serve(FakeMembership* membership, int* port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(*port), grpc::InsecureServerCredentials(),
                           port);
  builder.RegisterService(membership);
  return builder.BuildAndStart();
}

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_FAKE_MEMBERSHIP_H_
