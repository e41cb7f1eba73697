// hftransfer: moves frames between nodes for one GPU. hfagent starts it, when a lease of another
// node is wanted or given, and it ends with the last of them.
#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "agent/transfer/agent_leases.h"
#include "agent/transfer/far_server.h"
#include "agent/transfer/nccl/transfer_backend.h"
#include "agent/transfer/traffic_meter.h"
#include "agent/transfer/transfer_host.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/listen_address.h"
#include "common/malloc_arenas.h"
#include "common/shutdown.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

constexpr int kLookAtPeersMs = 200;

struct TransferFlags {
  TransferBackendOptions backend;
  std::string agent_socket;
  std::string listen_address = "127.0.0.1:0";
  int64_t worker_descriptor = -1;
  int64_t lifeline = -1;
  int64_t traffic_descriptor = -1;
  Bytes credit = 256 * kMiB;
};

// Whoever started it holds the other end of `lifeline`: once that is gone, and the last peer too,
// nobody needs this program any more. An agent that was killed so disturbs no peer. Returns early
// when `stop` is readable.
void EndWithLifeline(int lifeline, int stop, const FarServer& server, ShutdownSignal* shutdown) {
  pollfd watched[] = {{stop, POLLIN, 0}, {lifeline, POLLIN, 0}};
  bool alone = false;
  while (true) {
    poll(watched, alone ? 1 : 2, alone ? kLookAtPeersMs : -1);
    if (watched[0].revents != 0) return;
    alone = alone || watched[1].revents != 0;
    if (alone && server.peers() == 0) {
      shutdown->Notify();
      return;
    }
  }
}

// Tells whoever reads the other end of how fast frames go. A reader that is gone, or too slow, does
// not hear of it: nothing here may wait for it.
void TellTraffic(int descriptor, const TrafficWindow& window) {
  const std::string line = WriteWindow(window);
  // Shorter than PIPE_BUF: all of it or nothing, and never between another one's.
  if (write(descriptor, line.data(), line.size()) < 0) VLOG(1) << "nobody reads: " << line;
}

absl::Status Run(const TransferFlags& flags, ShutdownSignal* shutdown) {
  if (flags.agent_socket.empty() == (flags.worker_descriptor < 0)) {
    return absl::InvalidArgumentError(
        "give --agent-socket (to serve other nodes) or --worker-descriptor (to use them)");
  }
  const absl::Duration deadline = flags.backend.deadline;
  HF_ASSIGN_OR_RETURN(const auto backend, TransferBackend::Open(flags.backend));
  if (flags.worker_descriptor >= 0) {
    TransferHostOptions host;
    host.deadline = deadline;
    host.credit = flags.credit;
    if (const int told = static_cast<int>(flags.traffic_descriptor); told >= 0) {
      signal(SIGPIPE, SIG_IGN);
      host.on_traffic = [told](const TrafficWindow& window) { TellTraffic(told, window); };
    }
    return TransferHost(host, UniqueFd(static_cast<int>(flags.worker_descriptor)),
                        backend->device(), backend->transports())
        .Run();
  }
  HF_ASSIGN_OR_RETURN(const auto leases,
                      AgentLeases::Connect(flags.agent_socket, backend->device()));
  FarServerOptions far;
  HF_ASSIGN_OR_RETURN(far.listen_address, ParseHostPort(flags.listen_address));
  far.deadline = deadline;
  HF_ASSIGN_OR_RETURN(const auto server, FarServer::Start(far, backend->device(), leases.get(),
                                                          backend->transports()));
  printf("hftransfer ready: address=%s\n", FormatHostPort(server->address()).c_str());
  fflush(stdout);
  const UniqueFd lifeline(static_cast<int>(flags.lifeline));
  const UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  std::thread watcher;
  if (lifeline.valid()) {
    watcher =
        std::thread(EndWithLifeline, lifeline.get(), stop.get(), std::cref(*server), shutdown);
  }
  shutdown->Wait();
  eventfd_write(stop.get(), 1);
  if (watcher.joinable()) watcher.join();
  return absl::OkStatus();
}

void AddFlags(TransferFlags* flags, Config* config) {
  config->AddString(&flags->backend.backend, "backend", "\"host\" (TCP) or \"cuda\" (NCCL)");
  config->AddString(&flags->backend.gpu, "gpu", "UUID of the GPU that it works for");
  config->AddString(&flags->agent_socket, "agent-socket",
                    "serve other nodes, with leases of the agent behind this socket");
  config->AddString(&flags->listen_address, "listen-address", "where other nodes connect");
  config->AddInt(&flags->worker_descriptor, "worker-descriptor", -1, 1 << 20,
                 "use other nodes, for the training process behind this inherited socket");
  config->AddInt(&flags->traffic_descriptor, "traffic-descriptor", -1, 1 << 20,
                 "with --worker-descriptor: an inherited pipe that does not block, which is told "
                 "how fast frames go to and from other nodes");
  config->AddBytes(&flags->backend.bandwidth, "bandwidth",
                   "bytes/s of a simulated network, each way; 0 = as fast as memory");
  config->AddDuration(&flags->backend.deadline, "deadline", "how long a peer may be silent");
  config->AddString(&flags->backend.nccl_library, "nccl-library", "path of libnccl.so.2");
  config->AddString(&flags->backend.nccl_folder, "nccl-folder",
                    "looked for libnccl.so.2 last: the folder where torch keeps it");
  config->AddInt(&flags->lifeline, "lifeline", -1, 1 << 20,
                 "ends once the other end of this inherited pipe has, and the last peer is gone");
  config->AddBytes(&flags->credit, "credit", "under way to or from one peer at a time");
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) {
  hyperframes::UseOneMallocArena();
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  hyperframes::ShutdownSignal shutdown;
  hyperframes::TransferFlags flags;
  flags.backend.gpu = "SIM-local-0";
  hyperframes::Config config("hftransfer", "Moves frames between nodes for one GPU.");
  hyperframes::AddFlags(&flags, &config);
  const auto outcome = config.Parse(argc, argv);
  if (outcome.ok() && *outcome == hyperframes::Config::Outcome::kExit) return 0;
  const absl::Status status = outcome.ok() ? hyperframes::Run(flags, &shutdown) : outcome.status();
  if (!status.ok()) fprintf(stderr, "hftransfer: %s\n", std::string(status.message()).c_str());
  return hyperframes::ExitCode(status);
}
