// tests/bench:node_to_node. Copy-outs and reloads between two nodes, through an hftransfer on
// either side, against the transport's own calls with the same bytes in the same settings: ncclSend
// and ncclRecv on GPUs (--backend=cuda), a bare TCP socket on the host backend. The two nodes are
// two GPUs of one host with NCCL's peer and shared-memory transports off, so that everything goes
// through NCCL's network transport. The bytes are checked first.
//
//   bazel run //tests/bench:node_to_node -- --backend=cuda --nccl-library=.../libnccl.so.2
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/device/borrowed_memory.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/host/host_device.h"
#include "agent/transfer/two_nodes.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "nlohmann/json.hpp"
#include "tests/bench/plain_transfer.h"
#include "tests/bench/report.h"

namespace hyperframes {
namespace {

struct Options {
  std::string self;
  std::string output;
  std::string backend = "host";
  std::string hftransfer = "agent/hftransfer";
  std::string nccl_library;
  std::string plain_peer;
  std::string far_gpu;
  Bytes most_bytes = 64 * kMiB;
  int64_t rounds = 9;
};

constexpr int kAtOnce = 4;  // Frames queued behind one another in a round.

double Median(std::vector<double> values) { return Percentile(&values, 0.5); }

// The two GPUs, real or simulated.
struct Devices {
  std::unique_ptr<CudaMachine> cuda;
  std::unique_ptr<HostDevice> host[2];
  Device* near = nullptr;
  Device* far = nullptr;
};

absl::StatusOr<Devices> OpenDevices(const Options& options) {
  Devices devices;
  if (options.backend == "cuda") {
    CudaMachineOptions machine;
    machine.host_bytes = 0;
    HF_ASSIGN_OR_RETURN(devices.cuda, CudaMachine::Open(machine));
    // On a machine with one GPU that one is both nodes'.
    devices.near = devices.cuda->gpus().front();
    devices.far = devices.cuda->gpus()[devices.cuda->gpus().size() > 1 ? 1 : 0];
    return devices;
  }
  for (int i = 0; i < 2; ++i) {
    HostDeviceOptions host;
    host.uuid = absl::StrCat("SIM-bench-", i);
    host.total_bytes = 4 * kGiB;
    HF_ASSIGN_OR_RETURN(devices.host[i], HostDevice::Create(host));
  }
  devices.near = devices.host[0].get();
  devices.far = devices.host[1].get();
  return devices;
}

// A frame's way out and back, on lanes as the engine uses them.
class Frames {
 public:
  static absl::StatusOr<std::unique_ptr<Frames>> Open(TwoNodes* nodes, Device* near, Bytes bytes) {
    auto frames = std::make_unique<Frames>();
    frames->bytes_ = bytes;
    HF_ASSIGN_OR_RETURN(frames->lease_,
                        nodes->Lease(kAtOnce * bytes, /*staging_bytes=*/128 * kMiB));
    HF_ASSIGN_OR_RETURN(frames->source_, BorrowMemory(near, near, bytes));
    HF_ASSIGN_OR_RETURN(frames->back_, BorrowMemory(near, near, bytes));
    HF_ASSIGN_OR_RETURN(frames->out_, frames->lease_->CreateStream(Direction::kOut));
    HF_ASSIGN_OR_RETURN(frames->in_, frames->lease_->CreateStream(Direction::kIn));
    HF_ASSIGN_OR_RETURN(frames->local_, near->CreateStream(Direction::kOut, Tier::kPeer));
    return frames;
  }

  absl::Status CopyOut() {
    for (int i = 0; i < kAtOnce; ++i) {
      HF_RETURN_IF_ERROR(out_->Copy(lease_->data() + i * bytes_, source_->data(), bytes_));
    }
    return out_->Record()->Arrived();
  }
  absl::Status Reload() {
    for (int i = 0; i < kAtOnce; ++i) {
      HF_RETURN_IF_ERROR(in_->Copy(back_->data(), lease_->data() + i * bytes_, bytes_));
    }
    const auto done = in_->Record();
    HF_RETURN_IF_ERROR(done->Arrived());
    done->Synchronize();
    return absl::OkStatus();
  }
  // DataLoss unless what goes out comes back from every slot.
  absl::Status Check() {
    std::vector<char> pattern(static_cast<size_t>(bytes_));
    uint32_t state = 2463534242u;
    for (char& c : pattern) {
      state ^= state << 13;
      state ^= state >> 17;
      state ^= state << 5;
      c = static_cast<char>(state);
    }
    HF_RETURN_IF_ERROR(local_->Copy(source_->data(), pattern.data(), bytes_));
    local_->Record()->Synchronize();
    HF_RETURN_IF_ERROR(CopyOut());
    for (int i = 0; i < kAtOnce; ++i) {
      std::vector<char> seen(pattern.size(), '-');
      HF_RETURN_IF_ERROR(local_->Fill(back_->data(), 0xEE, bytes_));
      local_->Record()->Synchronize();
      HF_RETURN_IF_ERROR(in_->Copy(back_->data(), lease_->data() + i * bytes_, bytes_));
      const auto done = in_->Record();
      HF_RETURN_IF_ERROR(done->Arrived());
      done->Synchronize();
      HF_RETURN_IF_ERROR(local_->Copy(seen.data(), back_->data(), bytes_));
      local_->Record()->Synchronize();
      if (seen != pattern) return absl::DataLossError("a frame came back with other bytes");
    }
    return absl::OkStatus();
  }

 private:
  Bytes bytes_ = 0;
  std::unique_ptr<Memory> lease_;
  std::unique_ptr<Memory> source_;
  std::unique_ptr<Memory> back_;
  std::unique_ptr<Stream> out_;
  std::unique_ptr<Stream> in_;
  std::unique_ptr<Stream> local_;
};

struct Row {
  Bytes bytes = 0;
  double put = 0;  // Bytes per second, medians over the rounds.
  double fetch = 0;
  double plain_out = 0;
  double plain_back = 0;
  double put_ratio = 0;  // Medians of the rounds' own ratios: each runs both, one after the other.
  double fetch_ratio = 0;
};

absl::StatusOr<Row> Measure(TwoNodes* nodes, PlainTransfer* plain, Device* near, Bytes bytes,
                            int64_t rounds) {
  HF_ASSIGN_OR_RETURN(const auto frames, Frames::Open(nodes, near, bytes));
  HF_RETURN_IF_ERROR(frames->Check());
  std::vector<double> put, fetch, out, back, put_ratio, fetch_ratio;
  const double moved = static_cast<double>(bytes) * kAtOnce;
  for (int64_t round = -2; round < rounds; ++round) {  // Two to warm up.
    const absl::Time started = MonotonicClock()->Now();
    HF_RETURN_IF_ERROR(frames->CopyOut());
    const absl::Time stored = MonotonicClock()->Now();
    HF_RETURN_IF_ERROR(frames->Reload());
    const absl::Time reloaded = MonotonicClock()->Now();
    HF_ASSIGN_OR_RETURN(const PlainRound reference, plain->Measure(bytes, kAtOnce));
    if (round < 0) continue;
    put.push_back(moved / absl::ToDoubleSeconds(stored - started));
    fetch.push_back(moved / absl::ToDoubleSeconds(reloaded - stored));
    out.push_back(moved / reference.out_s);
    back.push_back(moved / reference.back_s);
    put_ratio.push_back(put.back() / out.back());
    fetch_ratio.push_back(fetch.back() / back.back());
  }
  return Row{bytes,        Median(put),       Median(fetch),      Median(out),
             Median(back), Median(put_ratio), Median(fetch_ratio)};
}

absl::Status Run(const Options& options) {
  PlainNcclOptions nccl;
  nccl.self = options.self;
  nccl.nccl_library = options.nccl_library;
  nccl.far_gpu = options.far_gpu;
  nccl.most_bytes = options.most_bytes;
  // Neither node may reach the other's memory: TwoNodes and StartPlainNccl say that they are two.
  setenv("NCCL_P2P_DISABLE", "1", 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  if (!options.plain_peer.empty()) return RunPlainNcclPeer(options.plain_peer, nccl);

  const bool cuda = options.backend == "cuda";
  nlohmann::ordered_json report =
      EmptyReport("node_to_node", absl::StrCat("bazel run //tests/bench:node_to_node -- --backend=",
                                               options.backend, " --rounds=", options.rounds));
  report["backend"] = options.backend;
  HF_ASSIGN_OR_RETURN(const Devices devices, OpenDevices(options));
  TwoNodesOptions nodes_options;
  nodes_options.hftransfer = options.hftransfer;
  nodes_options.backend = options.backend;
  nodes_options.nccl_library = options.nccl_library;
  report["gpus"] = devices.near == devices.far ? 1 : 2;
  nodes_options.near = devices.near;
  nodes_options.far = devices.far;
  HF_ASSIGN_OR_RETURN(const auto nodes, TwoNodes::Start(nodes_options));
  nccl.near_gpu = devices.near->description().uuid;
  nccl.far_gpu = devices.far->description().uuid;
  HF_ASSIGN_OR_RETURN(const auto plain, cuda ? StartPlainNccl(nccl) : StartPlainTcp());

  const char* const name = cuda ? "nccl" : "tcp";
  std::printf("%-10s %10s %10s %12s %12s %8s %8s   (GB/s)\n", "frame", "put", "fetch",
              absl::StrCat(name, " send").c_str(), absl::StrCat(name, " recv").c_str(), "put",
              "fetch");
  double ratio = 0;
  for (Bytes bytes = kMiB; bytes <= options.most_bytes; bytes *= 4) {
    HF_ASSIGN_OR_RETURN(const Row row,
                        Measure(nodes.get(), plain.get(), devices.near, bytes, options.rounds));
    std::printf("%-10s %10.3f %10.3f %12.3f %12.3f %8.3f %8.3f\n", FormatBytes(bytes).c_str(),
                row.put / 1e9, row.fetch / 1e9, row.plain_out / 1e9, row.plain_back / 1e9,
                row.put_ratio, row.fetch_ratio);
    std::fflush(stdout);
    report["rows"].push_back({{"bytes", bytes},
                              {"put_bytes_per_second", row.put},
                              {"fetch_bytes_per_second", row.fetch},
                              {"plain_send_bytes_per_second", row.plain_out},
                              {"plain_receive_bytes_per_second", row.plain_back},
                              {"put_ratio", row.put_ratio},
                              {"fetch_ratio", row.fetch_ratio}});
    ratio = std::min(row.put_ratio, row.fetch_ratio);  // Of the largest frame.
  }
  report["ratios"][absl::StrCat("node_to_node_vs_", name)] = ratio;
  HF_RETURN_IF_ERROR(WriteReport(options.output, report));
  std::printf("\nnode_to_node_vs_%s %.3f\nwrote %s\n", name, ratio, options.output.c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  options.self = argv[0];
  options.output = DefaultReportPath("node_to_node");
  Config config("node_to_node", "Measures transfers between two nodes against the bare transport.");
  config.AddString(&options.output, "output", "file that gets the JSON report");
  config.AddString(&options.backend, "backend", "host or cuda");
  config.AddString(&options.hftransfer, "hftransfer", "path of hftransfer");
  config.AddString(&options.nccl_library, "nccl-library", "path of libnccl.so.2");
  config.AddBytes(&options.most_bytes, "most-bytes", "the largest frame; its ratio counts");
  config.AddInt(&options.rounds, "rounds", 1, 1000, "paired rounds per size; the median counts");
  config.AddString(&options.plain_peer, "plain-peer", "for the program's own second process");
  config.AddString(&options.far_gpu, "far-gpu", "for the program's own second process");
  const absl::StatusOr<Config::Outcome> outcome = config.Parse(argc, argv);
  absl::Status status = outcome.status();
  if (outcome.ok()) {
    if (*outcome == Config::Outcome::kExit) return 0;
    status = Run(options);
  }
  if (!status.ok()) std::cerr << "node_to_node: " << status.message() << "\n";
  return ExitCode(status);
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) { return hyperframes::Main(argc, argv); }
