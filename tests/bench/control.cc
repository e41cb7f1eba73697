// tests/bench:control. How long GetJob and ListNodes take at a thousand calls a second, asked of
// the real hfcoordinator with nodes that beat and a job in the queue.
//
//   bazel run //tests/bench:control         prints a table, writes docs/benchmarks/control.json
#include <grpcpp/client_context.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/channel.h"
#include "client/cpp/client.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/grpc_status.h"
#include "common/protocol_version.h"
#include "common/status_macros.h"
#include "hyperframes/v1/membership.grpc.pb.h"
#include "tests/bench/coordinator_process.h"
#include "tests/bench/open_loop.h"
#include "tests/bench/report.h"

namespace hyperframes {
namespace {

struct Options {
  std::string output = DefaultReportPath("control");
  std::string coordinator_binary = "coordinator/hfcoordinator";
  int64_t rate = 1000;
  absl::Duration duration = absl::Seconds(10);
  int64_t nodes = 16;
};

constexpr absl::Duration kCallDeadline = absl::Seconds(10);

std::string NodeName(int64_t node) { return absl::StrCat("bench-", node); }

// Nodes that register and then beat once a second, as agents do.
class BeatingNodes {
 public:
  static absl::StatusOr<std::unique_ptr<BeatingNodes>> Start(const std::string& address,
                                                             int64_t count) {
    HF_ASSIGN_OR_RETURN(const auto channel, CreateClientChannel(address, /*ca_file=*/""));
    std::unique_ptr<BeatingNodes> nodes(new BeatingNodes(v1::Membership::NewStub(channel), count));
    for (int64_t node = 0; node < count; ++node) HF_RETURN_IF_ERROR(nodes->Register(node));
    nodes->beating_ = std::thread([raw = nodes.get()] { raw->Beat(); });
    return nodes;
  }
  ~BeatingNodes() {
    stop_ = true;
    if (beating_.joinable()) beating_.join();
  }
  int failed() const { return failed_; }

 private:
  BeatingNodes(std::unique_ptr<v1::Membership::Stub> stub, int64_t count)
      : stub_(std::move(stub)), count_(count) {}

  absl::Status Register(int64_t node) {
    v1::RegisterRequest request;
    request.mutable_version()->set_major(kProtocolMajor);
    request.mutable_version()->set_minor(kProtocolMinor);
    request.set_node(NodeName(node));
    request.set_incarnation(1000 + static_cast<uint64_t>(node));
    request.set_agent_address("127.0.0.1:1");  // Nobody calls: the one job asks for too many GPUs.
    request.set_http_address("127.0.0.1:1");
    request.set_worker_socket("/nowhere");
    request.set_host_lendable_bytes(kGiB);
    for (int gpu = 0; gpu < 8; ++gpu) {
      v1::GpuInfo* const info = request.add_gpus();
      info->set_uuid(absl::StrCat("SIM-", NodeName(node), "-", gpu));
      info->set_index(gpu);
      info->set_backend("host");
      info->set_total_bytes(kGiB);
    }
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kCallDeadline));
    v1::RegisterResponse response;
    return FromGrpc(stub_->Register(&context, request, &response));
  }

  void Beat() {
    for (uint64_t sequence = 1; !stop_; ++sequence) {
      for (int64_t node = 0; node < count_ && !stop_; ++node) {
        v1::HeartbeatRequest request;
        request.set_node(NodeName(node));
        request.set_incarnation(1000 + static_cast<uint64_t>(node));
        request.set_sequence(sequence);
        grpc::ClientContext context;
        context.set_deadline(absl::ToChronoTime(absl::Now() + kCallDeadline));
        v1::HeartbeatResponse response;
        if (!stub_->Heartbeat(&context, request, &response).ok() || !response.known()) ++failed_;
        absl::SleepFor(absl::Seconds(1) / count_);  // A real wait: one beat a second and node.
      }
    }
  }

  const std::unique_ptr<v1::Membership::Stub> stub_;
  const int64_t count_;
  std::atomic<bool> stop_{false};
  std::atomic<int> failed_{0};
  std::thread beating_;
};

// One call under way; lives until it is answered.
template <typename Request, typename Response>
struct CallUnderWay {
  grpc::ClientContext context;
  Request request;
  Response response;
};

template <typename Request, typename Response, typename Async>
void StartOne(Async* async,
              void (Async::*method)(grpc::ClientContext*, const Request*, Response*,
                                    std::function<void(grpc::Status)>),
              Request request, const std::function<void(bool)>& done) {
  auto call = std::make_shared<CallUnderWay<Request, Response>>();
  call->context.set_deadline(absl::ToChronoTime(absl::Now() + kCallDeadline));
  call->request = std::move(request);
  (async->*method)(&call->context, &call->request, &call->response,
                   [call, done](const grpc::Status& status) mutable {
                     // The call holds its channel. Whoever waits for the last answer lets go of
                     // the channel then, and its end must not come on this thread, which is its
                     // own.
                     call.reset();
                     done(status.ok());
                   });
}

absl::StatusOr<std::string> SubmitQueuedJob(const std::string& address, int64_t nodes) {
  ClientOptions options;
  options.address = address;
  HF_ASSIGN_OR_RETURN(const auto client, Client::Create(options));
  v1::SubmitJobRequest request;
  request.mutable_spec()->set_name("bench");
  request.mutable_spec()->add_command("true");
  request.mutable_spec()->set_ranks(static_cast<int32_t>(nodes * 8 + 1));
  HF_ASSIGN_OR_RETURN(const v1::SubmitJobResponse response, client->SubmitJob(request));
  return response.job().id();
}

struct Measured {
  OpenLoopResult loop;
  int calls = 0;
  int heartbeats_failed = 0;
};

absl::StatusOr<Measured> Measure(const Options& options) {
  HF_ASSIGN_OR_RETURN(const auto process, CoordinatorProcess::Start(options.coordinator_binary));
  HF_ASSIGN_OR_RETURN(const auto nodes, BeatingNodes::Start(process->address(), options.nodes));
  HF_ASSIGN_OR_RETURN(const std::string job, SubmitQueuedJob(process->address(), options.nodes));
  HF_ASSIGN_OR_RETURN(const auto channel, CreateClientChannel(process->address(), /*ca_file=*/""));
  const auto jobs = v1::Jobs::NewStub(channel);
  const auto cluster = v1::Cluster::NewStub(channel);
  const StartCall start = [&](int index, const std::function<void(bool)>& done) {
    if (index % 2 == 0) {
      v1::GetJobRequest request;
      request.set_id(job);
      StartOne<v1::GetJobRequest, v1::Job, v1::Jobs::StubInterface::async_interface>(
          jobs->async(), &v1::Jobs::Stub::async_interface::GetJob, std::move(request), done);
    } else {
      v1::ListNodesRequest request;
      request.mutable_version()->set_major(kProtocolMajor);
      request.mutable_version()->set_minor(kProtocolMinor);
      StartOne<v1::ListNodesRequest, v1::ListNodesResponse,
               v1::Cluster::StubInterface::async_interface>(
          cluster->async(), &v1::Cluster::Stub::async_interface::ListNodes, std::move(request),
          done);
    }
  };
  const auto rate = static_cast<double>(options.rate);
  RunOpenLoop(static_cast<int>(options.rate / 2 + 1), rate, start);  // To warm up.
  Measured measured;
  measured.calls = static_cast<int>(rate * absl::ToDoubleSeconds(options.duration));
  measured.loop = RunOpenLoop(measured.calls, rate, start);
  measured.heartbeats_failed = nodes->failed();
  return measured;
}

void AddRow(const std::string& method, std::vector<double> latencies,
            nlohmann::ordered_json* report) {
  if (latencies.empty()) return;
  const double p50 = Percentile(&latencies, 0.50);
  const double p99 = Percentile(&latencies, 0.99);
  const double longest = latencies.back();
  std::printf("%-10s %8zu %9.2f %9.2f %9.2f\n", method.c_str(), latencies.size(), p50, p99,
              longest);
  (*report)["rows"].push_back({{"method", method},
                               {"calls", latencies.size()},
                               {"p50_ms", p50},
                               {"p99_ms", p99},
                               {"longest_ms", longest}});
}

absl::Status Run(const Options& options) {
  HF_ASSIGN_OR_RETURN(Measured measured, Measure(options));
  nlohmann::ordered_json report = EmptyReport(
      "control", absl::StrCat("bazel run //tests/bench:control -- --rate=", options.rate,
                              " --duration=", absl::FormatDuration(options.duration),
                              " --nodes=", options.nodes));
  std::vector<double> by_method[2];
  for (size_t i = 0; i < measured.loop.indices.size(); ++i) {
    by_method[measured.loop.indices[i] % 2].push_back(measured.loop.latencies_ms[i]);
  }
  std::printf("%lld calls/s for %s, open loop, %lld nodes of 8 GPUs\n",
              static_cast<long long>(options.rate), absl::FormatDuration(options.duration).c_str(),
              static_cast<long long>(options.nodes));
  std::printf("%-10s %8s %9s %9s %9s\n", "method", "calls", "p50 ms", "p99 ms", "max ms");
  AddRow("GetJob", by_method[0], &report);
  AddRow("ListNodes", by_method[1], &report);
  AddRow("all", measured.loop.latencies_ms, &report);
  std::printf("failed %d calls, %d heartbeats; latest start %.2f ms behind schedule\n",
              measured.loop.failed, measured.heartbeats_failed,
              absl::ToDoubleMilliseconds(measured.loop.latest_start));
  if (measured.loop.failed > 0 || measured.heartbeats_failed > 0) {
    return absl::InternalError("calls failed: the numbers above are not a result");
  }
  report["rows"].back()["latest_start_ms"] = absl::ToDoubleMilliseconds(measured.loop.latest_start);
  const std::string ratio = absl::StrCat("rpc_p99_ms_at_", options.rate, "_per_s");
  report["ratios"][ratio] = Percentile(&measured.loop.latencies_ms, 0.99);
  KeepOtherRatios(options.output, &report);
  HF_RETURN_IF_ERROR(WriteReport(options.output, report));
  std::printf("wrote %s\n", options.output.c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  Config config("control", "Measures the coordinator's RPCs at a fixed rate.");
  config.AddString(&options.output, "output", "file that gets the JSON report");
  config.AddString(&options.coordinator_binary, "coordinator-binary", "hfcoordinator to start");
  config.AddInt(&options.rate, "rate", 1, 100000, "calls per second");
  config.AddDuration(&options.duration, "duration", "of the measurement");
  config.AddInt(&options.nodes, "nodes", 1, 4096, "that register and beat");
  const absl::StatusOr<Config::Outcome> outcome = config.Parse(argc, argv);
  absl::Status status = outcome.status();
  if (outcome.ok()) {
    if (*outcome == Config::Outcome::kExit) return kExitOk;
    status = Run(options);
  }
  if (!status.ok()) std::cerr << "control benchmark: " << status.message() << "\n";
  return ExitCode(status);
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) { return hyperframes::Main(argc, argv); }
