// tests/bench:engine. The frame engine on real GPUs: put and fetch against plain copies of the same
// bytes over the same path in the same run, the caller's processor time per put and per fetch
// beyond the driver's own calls, and what pinning costs.
//
//   bazel run //tests/bench:engine          prints a table, writes docs/benchmarks/engine.json
//
// Peers are measured where the process sees a second GPU. --backend=host runs the same on simulated
// GPUs, to show that it works.
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/device/borrowed_memory.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/host/host_machine.h"
#include "agent/engine/frame_engine.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "nlohmann/json.hpp"
#include "tests/bench/engine_small.h"
#include "tests/bench/engine_way.h"
#include "tests/bench/report.h"

namespace hyperframes {
namespace {

struct Options {
  std::string output;
  std::string backend = "cuda";
  int64_t rounds = 9;
};

absl::Status MoveThroughEngine(Way* way, Bytes each, Rates* rates) {
  const int count = static_cast<int>(kBytes / each);
  std::vector<StorageHandle> handles;
  double started = Seconds();
  for (int i = 0; i < count; ++i) {
    StorageKey key;
    key.ordinal = i;
    HF_ASSIGN_OR_RETURN(const Placement put, way->engine->Put(key, way->source->data() + i * each,
                                                              each, way->tier, "", -1, nullptr));
    if (put.handle == 0) return absl::InternalError("a storage found no room in its lease");
    handles.push_back(put.handle);
  }
  way->engine->TakeReleasable(0, nullptr);
  HF_RETURN_IF_ERROR(Finish(way->gpu));
  rates->put = Seconds() - started;

  started = Seconds();
  for (int i = 0; i < count; ++i) {
    HF_RETURN_IF_ERROR(way->engine->Fetch(handles[i], way->back->data() + i * each, true, nullptr));
  }
  for (const StorageHandle handle : handles) {
    HF_RETURN_IF_ERROR(way->engine->Wait(handle, nullptr));
  }
  HF_RETURN_IF_ERROR(Finish(way->gpu));
  rates->fetch = Seconds() - started;
  for (const StorageHandle handle : handles) way->engine->Drop(handle);
  return way->engine->Quiesce();
}

absl::Status CopyPlainly(Way* way, Bytes each, Rates* rates) {
  double started = Seconds();
  for (Bytes at = 0; at < kBytes; at += each) {
    HF_RETURN_IF_ERROR(way->out->Copy(way->lease->data() + at, way->source->data() + at, each));
  }
  way->out->Record()->Synchronize();
  rates->out = Seconds() - started;
  started = Seconds();
  for (Bytes at = 0; at < kBytes; at += each) {
    HF_RETURN_IF_ERROR(way->in->Copy(way->back->data() + at, way->lease->data() + at, each));
  }
  way->in->Record()->Synchronize();
  rates->in = Seconds() - started;
  return absl::OkStatus();
}

// Proves that the first `bytes` of what `move` brings back are what went out, through memory that
// the processor reads.
absl::Status CheckBytes(Way* way, Device* host, Bytes bytes,
                        const std::function<absl::Status()>& move) {
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> window, BorrowMemory(way->gpu, host, kBytes));
  HF_RETURN_IF_ERROR(window->WaitUntilUsable());
  uint32_t state = 12345;
  std::vector<char> expected(kBytes);
  for (char& byte : expected) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  std::memcpy(window->data(), expected.data(), kBytes);
  HF_RETURN_IF_ERROR(way->out->Copy(way->source->data(), window->data(), kBytes));
  way->out->Record()->Synchronize();
  HF_RETURN_IF_ERROR(way->out->Fill(way->back->data(), 0, kBytes));
  way->out->Record()->Synchronize();
  HF_RETURN_IF_ERROR(move());
  std::memset(window->data(), 0, kBytes);
  HF_RETURN_IF_ERROR(way->out->Copy(window->data(), way->back->data(), kBytes));
  way->out->Record()->Synchronize();
  if (std::memcmp(window->data(), expected.data(), bytes) != 0) {
    return absl::DataLossError(absl::StrCat("other bytes came back from tier ", way->name));
  }
  return absl::OkStatus();
}

absl::Status MeasureSize(Way* way, Bytes each, int64_t rounds, nlohmann::ordered_json* report) {
  std::vector<double> put;
  std::vector<double> fetch;
  std::vector<double> ratio;
  std::vector<double> out;
  std::vector<double> in;
  for (int64_t round = -1; round < rounds; ++round) {
    Rates rates;
    HF_RETURN_IF_ERROR(MoveThroughEngine(way, each, &rates));
    HF_RETURN_IF_ERROR(CopyPlainly(way, each, &rates));
    if (round < 0) continue;
    put.push_back(static_cast<double>(kBytes) / rates.put);
    fetch.push_back(static_cast<double>(kBytes) / rates.fetch);
    out.push_back(static_cast<double>(kBytes) / rates.out);
    in.push_back(static_cast<double>(kBytes) / rates.in);
    ratio.push_back((rates.out + rates.in) / (rates.put + rates.fetch));
  }
  const double median = Median(ratio);
  std::printf("%-5s %-8s %10.1f %10.1f %10.1f %10.1f %8.3f\n", way->name.c_str(),
              FormatBytes(each).c_str(), Median(put) / 1e9, Median(fetch) / 1e9, Median(out) / 1e9,
              Median(in) / 1e9, median);
  std::fflush(stdout);
  (*report)["rows"].push_back({{"tier", way->name},
                               {"bytes", each},
                               {"put_bytes_per_second", Median(put)},
                               {"fetch_bytes_per_second", Median(fetch)},
                               {"plain_out_bytes_per_second", Median(out)},
                               {"plain_in_bytes_per_second", Median(in)}});
  (*report)["ratios"][absl::StrCat("copy_", each / kMiB, "mib_vs_", way->name, "_copy")] = median;
  return absl::OkStatus();
}

struct CpuTimes {
  double put = 0;
  double driver_put = 0;  // The same calls of the driver, without an engine.
  double fetch = 0;       // Fetch, Wait and Drop.
  double driver_fetch = 0;
};

constexpr int kBatch = 100;
constexpr Bytes kAlone = 2 * kMiB;  // Too large to travel with others.

// What the driver is asked for one put: an event of the computing stream, a wait, a copy, an event.
absl::Status DriverPut(Way* way, std::shared_ptr<const Event>* done) {
  HF_ASSIGN_OR_RETURN(const std::shared_ptr<const Event> produced,
                      way->gpu->RecordCompute(nullptr));
  HF_RETURN_IF_ERROR(way->out->WaitFor(produced));
  HF_RETURN_IF_ERROR(way->out->Copy(way->lease->data(), way->source->data(), kAlone));
  *done = way->out->Record();
  return absl::OkStatus();
}

// And for one fetch: an event, two waits, a copy, an event, and the computing stream's wait.
absl::Status DriverFetch(Way* way, const std::shared_ptr<const Event>& copied_out) {
  HF_ASSIGN_OR_RETURN(const std::shared_ptr<const Event> free, way->gpu->RecordCompute(nullptr));
  HF_RETURN_IF_ERROR(way->in->WaitFor(free));
  HF_RETURN_IF_ERROR(way->in->WaitFor(copied_out));
  HF_RETURN_IF_ERROR(way->in->Copy(way->back->data(), way->lease->data(), kAlone));
  return way->gpu->ComputeWait(nullptr, *way->in->Record());
}

absl::StatusOr<CpuTimes> MeasureCpuOnce(Way* way) {
  CpuTimes times;
  std::vector<StorageHandle> handles;
  double before = ThreadCpuMicroseconds();
  for (int i = 0; i < kBatch; ++i) {
    StorageKey key;
    key.ordinal = i;
    HF_ASSIGN_OR_RETURN(const Placement put, way->engine->Put(key, way->source->data(), kAlone,
                                                              way->tier, "", -1, nullptr));
    handles.push_back(put.handle);
  }
  times.put = (ThreadCpuMicroseconds() - before) / kBatch;
  way->engine->TakeReleasable(0, nullptr);
  HF_RETURN_IF_ERROR(Finish(way->gpu));
  before = ThreadCpuMicroseconds();
  for (const StorageHandle handle : handles) {
    HF_RETURN_IF_ERROR(way->engine->Fetch(handle, way->back->data(), false, nullptr));
    HF_RETURN_IF_ERROR(way->engine->Wait(handle, nullptr));
  }
  times.fetch = (ThreadCpuMicroseconds() - before) / kBatch;
  HF_RETURN_IF_ERROR(Finish(way->gpu));
  before = ThreadCpuMicroseconds();
  for (const StorageHandle handle : handles) way->engine->Drop(handle);
  times.fetch += (ThreadCpuMicroseconds() - before) / kBatch;
  HF_RETURN_IF_ERROR(way->engine->Quiesce());

  std::vector<std::shared_ptr<const Event>> done(kBatch);
  before = ThreadCpuMicroseconds();
  for (auto& event : done) HF_RETURN_IF_ERROR(DriverPut(way, &event));
  times.driver_put = (ThreadCpuMicroseconds() - before) / kBatch;
  done.back()->Synchronize();
  before = ThreadCpuMicroseconds();
  for (const auto& event : done) HF_RETURN_IF_ERROR(DriverFetch(way, event));
  times.driver_fetch = (ThreadCpuMicroseconds() - before) / kBatch;
  HF_RETURN_IF_ERROR(Finish(way->gpu));
  return times;
}

absl::Status MeasureCpu(Way* way, int64_t rounds, nlohmann::ordered_json* report) {
  std::vector<double> put;
  std::vector<double> fetch;
  std::vector<double> driver_put;
  std::vector<double> driver_fetch;
  for (int64_t round = -1; round < rounds; ++round) {
    HF_ASSIGN_OR_RETURN(const CpuTimes times, MeasureCpuOnce(way));
    if (round < 0) continue;
    put.push_back(times.put);
    fetch.push_back(times.fetch);
    driver_put.push_back(times.driver_put);
    driver_fetch.push_back(times.driver_fetch);
  }
  std::printf(
      "processor time per storage, tier %s: put %.2f us, of these the driver's calls %.2f; "
      "fetch + wait + drop %.2f us, of these the driver's calls %.2f\n",
      way->name.c_str(), Median(put), Median(driver_put), Median(fetch), Median(driver_fetch));
  (*report)["rows"].push_back({{"tier", way->name},
                               {"bytes", kAlone},
                               {"put_cpu_us", Median(put)},
                               {"put_driver_cpu_us", Median(driver_put)},
                               {"fetch_cpu_us", Median(fetch)},
                               {"fetch_driver_cpu_us", Median(driver_fetch)}});
  (*report)["ratios"]["put_cpu_us_beyond_driver"] = Median(put) - Median(driver_put);
  (*report)["ratios"]["fetch_cpu_us_beyond_driver"] = Median(fetch) - Median(driver_fetch);
  return absl::OkStatus();
}

absl::Status MeasureWay(Device* gpu, Device* lender, Device* host, const Options& options,
                        nlohmann::ordered_json* report) {
  HF_ASSIGN_OR_RETURN(Way way, OpenWay(gpu, lender, lender == host));
  Rates unused;
  HF_RETURN_IF_ERROR(
      CheckBytes(&way, host, kBytes, [&] { return MoveThroughEngine(&way, 16 * kMiB, &unused); }));
  HF_RETURN_IF_ERROR(CheckBytes(&way, host, kSmallCount * kSmall, [&] { return MoveSmall(&way); }));
  for (const Bytes each : {kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    HF_RETURN_IF_ERROR(MeasureSize(&way, each, options.rounds, report));
  }
  HF_RETURN_IF_ERROR(MeasureSmall(&way, options.rounds, report));
  HF_RETURN_IF_ERROR(MeasureCpu(&way, options.rounds, report));
  if (way.pinning_s_per_gib > 0) {
    std::printf("pinning: %.2f s per GiB\n", way.pinning_s_per_gib);
    (*report)["ratios"]["pinning_s_per_gib"] = way.pinning_s_per_gib;
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  std::unique_ptr<GpuMachine> machine;
  if (options.backend == "cuda") {
    CudaMachineOptions cuda;
    cuda.host_bytes = 2 * kGiB;
    HF_ASSIGN_OR_RETURN(machine, CudaMachine::Open(cuda));
  } else {
    HostMachineOptions simulated;
    HF_ASSIGN_OR_RETURN(simulated.devices, ParseHostDevices("2 x 2GiB"));
    simulated.host_bytes = 2 * kGiB;
    HF_ASSIGN_OR_RETURN(machine, HostMachine::Create(std::move(simulated)));
  }
  nlohmann::ordered_json report = EmptyReport(
      "engine", absl::StrCat("bazel run //tests/bench:engine -- --rounds=", options.rounds));
  report["backend"] = options.backend;
  Device* const gpu = machine->gpus().front();
  report["gpu"] = gpu->description().name;
  std::printf("%-5s %-8s %10s %10s %10s %10s %8s\n", "tier", "size", "put GB/s", "fetch",
              "plain out", "plain in", "ratio");
  // The peer's processor times are the ones that are kept where there is a peer. What one way has
  // measured is on file whatever becomes of the other.
  const absl::Status by_host = MeasureWay(gpu, machine->host(), machine->host(), options, &report);
  if (!by_host.ok()) std::printf("host: %s\n", std::string(by_host.message()).c_str());
  HF_RETURN_IF_ERROR(WriteReport(options.output, report));
  if (machine->gpus().size() > 1 && machine->CanReach(*gpu, *machine->gpus()[1])) {
    HF_RETURN_IF_ERROR(MeasureWay(gpu, machine->gpus()[1], machine->host(), options, &report));
  } else {
    std::printf("peer: not measured, there is no second GPU in reach\n");
  }
  HF_RETURN_IF_ERROR(WriteReport(options.output, report));
  HF_RETURN_IF_ERROR(by_host);
  std::printf("\nwrote %s\n", options.output.c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  options.output = DefaultReportPath("engine");
  Config config("engine", "Measures the frame engine on GPUs against plain copies.");
  config.AddString(&options.output, "output", "file that gets the JSON report");
  config.AddString(&options.backend, "backend", "cuda, or host for simulated GPUs");
  config.AddInt(&options.rounds, "rounds", 1, 1000, "paired rounds per size; the median counts");
  const absl::StatusOr<Config::Outcome> outcome = config.Parse(argc, argv);
  absl::Status status = outcome.status();
  if (outcome.ok()) {
    if (*outcome == Config::Outcome::kExit) return 0;
    status = options.backend == "cuda" || options.backend == "host"
                 ? Run(options)
                 : absl::InvalidArgumentError(
                       absl::StrCat("--backend is ", options.backend, "; it is cuda or host"));
  }
  if (!status.ok()) std::cerr << "engine benchmark: " << status.message() << "\n";
  return ExitCode(status);
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) { return hyperframes::Main(argc, argv); }
