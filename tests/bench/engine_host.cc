// tests/bench:engine_host. Bytes per second of put + fetch against a plain memcpy of the same bytes
// in the same run, and the caller's processor time per put and per fetch, on the host backend.
//
//   bazel run //tests/bench:engine_host          prints a table, writes
//   docs/benchmarks/engine_host.json
#include <time.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/device/host/host_device.h"
#include "agent/engine/frame_engine.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "nlohmann/json.hpp"
#include "tests/bench/report.h"

namespace hyperframes {
namespace {

struct Options {
  std::string output;
  int64_t rounds = 21;
};

double Median(std::vector<double> values) { return Percentile(&values, 0.5); }

double Seconds() { return absl::ToDoubleSeconds(MonotonicClock()->Now() - absl::UnixEpoch()); }

double ThreadCpuMicroseconds() {
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) * 1e6 + static_cast<double>(used.tv_nsec) / 1e3;
}

struct Bench {
  std::unique_ptr<HostDevice> device;
  std::unique_ptr<FrameEngine> engine;
};

absl::StatusOr<Bench> CreateBench(Bytes arena_bytes, Bytes largest_packed = kMiB) {
  Bench bench;
  HostDeviceOptions device;
  device.uuid = "SIM-bench-0";
  device.total_bytes = arena_bytes;
  HF_ASSIGN_OR_RETURN(bench.device, HostDevice::Create(device));
  EngineArena arena;
  arena.lease_id = "bench";
  arena.tier = Tier::kPeer;
  HF_ASSIGN_OR_RETURN(arena.memory, bench.device->Allocate(arena_bytes));
  // Both sides of a comparison find their pages there.
  std::memset(arena.memory->data(), 1, arena_bytes);
  std::vector<EngineArena> arenas;
  arenas.push_back(std::move(arena));
  FrameEngineOptions options;
  options.stash_limit = 2 * arena_bytes;
  options.prefetch_limit = 2 * arena_bytes;
  options.largest_packed = largest_packed;
  HF_ASSIGN_OR_RETURN(bench.engine,
                      FrameEngine::Create(bench.device.get(), std::move(arenas), options));
  return bench;
}

absl::Status Move(FrameEngine* engine, const char* source, char* back, Bytes bytes) {
  HF_ASSIGN_OR_RETURN(const Placement put,
                      engine->Put({}, source, bytes, Tier::kPeer, "", -1, nullptr));
  engine->TakeReleasable(0, nullptr);
  HF_RETURN_IF_ERROR(engine->Fetch(put.handle, back, /*is_prefetch=*/false, nullptr));
  HF_RETURN_IF_ERROR(engine->Wait(put.handle, nullptr));
  engine->Drop(put.handle);
  return absl::OkStatus();
}

struct CopyRow {
  Bytes bytes = 0;
  double engine_bytes_per_second = 0;
  double memcpy_bytes_per_second = 0;
  double ratio = 0;  // Median over rounds, each of which ran both, one after the other.
};

absl::StatusOr<CopyRow> MeasureCopy(Bytes bytes, int64_t rounds) {
  HF_ASSIGN_OR_RETURN(Bench bench, CreateBench(bytes));
  // memcpy gets the same kind of memory in the middle: a mapping of shared pages.
  HostDeviceOptions scratch_device;
  scratch_device.uuid = "SIM-bench-1";
  scratch_device.total_bytes = bytes;
  HF_ASSIGN_OR_RETURN(const auto lender, HostDevice::Create(scratch_device));
  HF_ASSIGN_OR_RETURN(const auto scratch, lender->Allocate(bytes));
  std::vector<char> source(bytes, 's');
  std::vector<char> back(bytes, '-');
  std::memset(scratch->data(), 1, bytes);

  std::vector<double> engine_rates;
  std::vector<double> memcpy_rates;
  std::vector<double> ratios;
  for (int64_t round = -2; round < rounds; ++round) {  // Two to warm up.
    source[0] = static_cast<char>(round);
    const double started = Seconds();
    HF_RETURN_IF_ERROR(Move(bench.engine.get(), source.data(), back.data(), bytes));
    const double moved = Seconds();
    if (back != source) return absl::DataLossError("put + fetch brought back other bytes");
    const double compared = Seconds();
    std::memcpy(scratch->data(), source.data(), bytes);
    std::memcpy(back.data(), scratch->data(), bytes);
    const double copied = Seconds();
    if (round < 0) continue;
    engine_rates.push_back(2.0 * static_cast<double>(bytes) / (moved - started));
    memcpy_rates.push_back(2.0 * static_cast<double>(bytes) / (copied - compared));
    ratios.push_back(engine_rates.back() / memcpy_rates.back());
  }
  return CopyRow{bytes, Median(engine_rates), Median(memcpy_rates), Median(ratios)};
}

struct CpuRow {
  double put_us = 0;
  double fetch_us = 0;   // Fetch, Wait and Drop, when the reload is over before the Wait.
  double stream_us = 0;  // A bare copy and event on the same kind of stream: what a driver costs.
};

constexpr int kBatch = 500;
constexpr Bytes kSmall = 4 * kKiB;

// As the front does: what the engine names is fetched, until it names no more.
absl::Status Prefetch(FrameEngine* engine, char* back) {
  for (auto due = engine->NextToPrefetch(); !due.empty(); due = engine->NextToPrefetch()) {
    for (const StorageHandle handle : due) {
      HF_RETURN_IF_ERROR(engine->Fetch(handle, back + (handle % kBatch) * kSmall,
                                       /*is_prefetch=*/true, nullptr));
    }
  }
  return absl::OkStatus();
}

// Processor time of one round, per storage.
absl::StatusOr<CpuRow> MeasureCpuOnce(FrameEngine* engine, Stream* stream, const char* source,
                                      char* back) {
  CpuRow row;
  std::vector<StorageHandle> handles(kBatch);
  double before = ThreadCpuMicroseconds();
  for (int i = 0; i < kBatch; ++i) {
    StorageKey key;
    key.ordinal = i;
    HF_ASSIGN_OR_RETURN(const Placement put,
                        engine->Put(key, source, kSmall, Tier::kPeer, "", -1, nullptr));
    handles[i] = put.handle;
  }
  row.put_us = (ThreadCpuMicroseconds() - before) / kBatch;
  engine->TakeReleasable(0, nullptr);

  before = ThreadCpuMicroseconds();
  HF_RETURN_IF_ERROR(Prefetch(engine, back));
  for (auto handle = handles.rbegin(); handle != handles.rend(); ++handle) {
    HF_RETURN_IF_ERROR(engine->Wait(*handle, nullptr));
    engine->Drop(*handle);
  }
  row.fetch_us = (ThreadCpuMicroseconds() - before) / kBatch;
  HF_RETURN_IF_ERROR(engine->Quiesce());

  before = ThreadCpuMicroseconds();
  std::shared_ptr<const Event> last;
  for (int i = 0; i < kBatch; ++i) {
    HF_RETURN_IF_ERROR(stream->Copy(back, source, kSmall));
    last = stream->Record();
  }
  row.stream_us = (ThreadCpuMicroseconds() - before) / kBatch;
  last->Synchronize();
  return row;
}

absl::StatusOr<CpuRow> MeasureCpu(Bytes largest_packed, int64_t rounds) {
  HF_ASSIGN_OR_RETURN(Bench bench, CreateBench(kBatch * kSmall, largest_packed));
  HF_ASSIGN_OR_RETURN(const auto stream, bench.device->CreateStream(Direction::kOut, Tier::kPeer));
  std::vector<char> source(kSmall, 's');
  std::vector<char> back(kBatch * kSmall);
  std::vector<double> puts;
  std::vector<double> fetches;
  std::vector<double> streams;
  for (int64_t round = -2; round < rounds; ++round) {
    HF_ASSIGN_OR_RETURN(const CpuRow row, MeasureCpuOnce(bench.engine.get(), stream.get(),
                                                         source.data(), back.data()));
    if (round < 0) continue;
    puts.push_back(row.put_us);
    fetches.push_back(row.fetch_us);
    streams.push_back(row.stream_us);
  }
  return CpuRow{Median(puts), Median(fetches), Median(streams)};
}

absl::Status ReportCpu(Bytes largest_packed, int64_t rounds, nlohmann::ordered_json* report) {
  HF_ASSIGN_OR_RETURN(const CpuRow cpu, MeasureCpu(largest_packed, rounds));
  const bool packed = largest_packed > 0;
  std::printf("  %-10s put %.2f us, fetch + wait + drop %.2f us, bare copy + event %.2f us\n",
              packed ? "together" : "alone", cpu.put_us, cpu.fetch_us, cpu.stream_us);
  (*report)["rows"].push_back({{"bytes", kSmall},
                               {"packed", packed},
                               {"put_cpu_us", cpu.put_us},
                               {"fetch_cpu_us", cpu.fetch_us},
                               {"stream_cpu_us", cpu.stream_us}});
  if (packed) return absl::OkStatus();
  (*report)["ratios"]["put_cpu_us_beyond_driver"] = cpu.put_us - cpu.stream_us;
  (*report)["ratios"]["fetch_cpu_us_beyond_driver"] = cpu.fetch_us - cpu.stream_us;
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  nlohmann::ordered_json report =
      EmptyReport("engine_host",
                  absl::StrCat("bazel run //tests/bench:engine_host -- --rounds=", options.rounds));
  report["backend"] = "host";

  std::printf("%-10s %16s %16s %8s\n", "size", "put + fetch GB/s", "memcpy GB/s", "ratio");
  for (const Bytes bytes : {kMiB, 16 * kMiB, 64 * kMiB}) {
    HF_ASSIGN_OR_RETURN(const CopyRow row, MeasureCopy(bytes, options.rounds));
    std::printf("%-10s %16.2f %16.2f %8.3f\n", FormatBytes(bytes).c_str(),
                row.engine_bytes_per_second / 1e9, row.memcpy_bytes_per_second / 1e9, row.ratio);
    report["rows"].push_back({{"bytes", bytes},
                              {"put_fetch_bytes_per_second", row.engine_bytes_per_second},
                              {"memcpy_bytes_per_second", row.memcpy_bytes_per_second}});
    report["ratios"][absl::StrCat("copy_", bytes / kMiB, "mib_vs_memcpy")] = row.ratio;
  }
  std::printf("\nprocessor time of the caller, 4 KiB storages\n");
  HF_RETURN_IF_ERROR(ReportCpu(/*largest_packed=*/0, options.rounds, &report));
  HF_RETURN_IF_ERROR(ReportCpu(/*largest_packed=*/kMiB, options.rounds, &report));
  HF_RETURN_IF_ERROR(WriteReport(options.output, report));
  std::printf("\nwrote %s\n", options.output.c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  options.output = DefaultReportPath("engine_host");
  Config config("engine_host", "Measures the frame engine on the host backend against memcpy.");
  config.AddString(&options.output, "output", "file that gets the JSON report");
  config.AddInt(&options.rounds, "rounds", 1, 1000, "paired rounds per size; the median counts");
  const absl::StatusOr<Config::Outcome> outcome = config.Parse(argc, argv);
  absl::Status status = outcome.status();
  if (outcome.ok()) {
    if (*outcome == Config::Outcome::kExit) return 0;
    status = Run(options);
  }
  if (!status.ok()) std::cerr << "engine benchmark: " << status.message() << "\n";
  return ExitCode(status);
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) { return hyperframes::Main(argc, argv); }
