#include "tests/bench/engine_small.h"

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// Seconds of a round, and microseconds of processor time for each storage.
struct Round {
  Rates rates;
  double put_cpu = 0;
  double fetch_cpu = 0;  // And wait.
  double plain_cpu = 0;
};

absl::Status PutAll(Way* way, Round* round, std::vector<StorageHandle>* handles) {
  const double started = Seconds();
  const double before = ThreadCpuMicroseconds();
  for (int i = 0; i < kSmallCount; ++i) {
    StorageKey key;
    key.ordinal = i;
    HF_ASSIGN_OR_RETURN(const Placement put, way->engine->Put(key, way->source->data() + i * kSmall,
                                                              kSmall, way->tier, "", -1, nullptr));
    if (put.handle == 0) return absl::InternalError("a storage found no room in its lease");
    handles->push_back(put.handle);
  }
  way->engine->TakeReleasable(0, nullptr);
  round->put_cpu = (ThreadCpuMicroseconds() - before) / kSmallCount;
  HF_RETURN_IF_ERROR(Finish(way->gpu));
  round->rates.put = Seconds() - started;
  return absl::OkStatus();
}

absl::Status FetchAll(Way* way, const std::vector<StorageHandle>& handles, Round* round) {
  const double started = Seconds();
  const double before = ThreadCpuMicroseconds();
  const auto fetch = [&](StorageHandle handle, bool is_prefetch) {
    const auto at = static_cast<Bytes>(handle - handles.front()) * kSmall;
    return way->engine->Fetch(handle, way->back->data() + at, is_prefetch, nullptr);
  };
  std::vector<bool> is_named(kSmallCount);
  for (auto due = way->engine->NextToPrefetch(); !due.empty();
       due = way->engine->NextToPrefetch()) {
    for (const StorageHandle handle : due) {
      is_named[handle - handles.front()] = true;
      HF_RETURN_IF_ERROR(fetch(handle, /*is_prefetch=*/true));
    }
  }
  for (const StorageHandle handle : handles) {
    // The order learned from other sizes does not name all of these in the first round.
    if (!is_named[handle - handles.front()]) HF_RETURN_IF_ERROR(fetch(handle, false));
    HF_RETURN_IF_ERROR(way->engine->Wait(handle, nullptr));
  }
  round->fetch_cpu = (ThreadCpuMicroseconds() - before) / kSmallCount;
  HF_RETURN_IF_ERROR(Finish(way->gpu));
  round->rates.fetch = Seconds() - started;
  return absl::OkStatus();
}

absl::Status MoveOnce(Way* way, Round* round) {
  std::vector<StorageHandle> handles;
  HF_RETURN_IF_ERROR(PutAll(way, round, &handles));
  HF_RETURN_IF_ERROR(FetchAll(way, handles, round));
  for (const StorageHandle handle : handles) way->engine->Drop(handle);
  return way->engine->Quiesce();
}

// The same bytes by single copies and one event behind all.
absl::Status CopyOnce(Stream* lane, char* to, const char* from, double* seconds, double* cpu) {
  const double started = Seconds();
  const double before = ThreadCpuMicroseconds();
  for (Bytes at = 0; at < kSmallCount * kSmall; at += kSmall) {
    HF_RETURN_IF_ERROR(lane->Copy(to + at, from + at, kSmall));
  }
  const auto done = lane->Record();
  *cpu += (ThreadCpuMicroseconds() - before) / (2 * kSmallCount);
  done->Synchronize();
  *seconds = Seconds() - started;
  return absl::OkStatus();
}

template <typename Of>
double MedianOf(const std::vector<Round>& rounds, Of of) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const Round& round : rounds) values.push_back(of(round));
  return Median(std::move(values));
}

}  // namespace

absl::Status MoveSmall(Way* way) {
  Round unused;
  return MoveOnce(way, &unused);
}

absl::Status MeasureSmall(Way* way, int64_t rounds, nlohmann::ordered_json* report) {
  std::vector<Round> seen;
  for (int64_t i = -1; i < rounds; ++i) {
    Round round;
    HF_RETURN_IF_ERROR(MoveOnce(way, &round));
    HF_RETURN_IF_ERROR(CopyOnce(way->out.get(), way->lease->data(), way->source->data(),
                                &round.rates.out, &round.plain_cpu));
    HF_RETURN_IF_ERROR(CopyOnce(way->in.get(), way->back->data(), way->lease->data(),
                                &round.rates.in, &round.plain_cpu));
    if (i >= 0) seen.push_back(round);
  }
  constexpr double kMoved = kSmallCount * kSmall;
  const double put = MedianOf(seen, [](const Round& r) { return kMoved / r.rates.put; });
  const double fetch = MedianOf(seen, [](const Round& r) { return kMoved / r.rates.fetch; });
  const double out = MedianOf(seen, [](const Round& r) { return kMoved / r.rates.out; });
  const double in = MedianOf(seen, [](const Round& r) { return kMoved / r.rates.in; });
  const double put_cpu = MedianOf(seen, [](const Round& r) { return r.put_cpu; });
  const double fetch_cpu = MedianOf(seen, [](const Round& r) { return r.fetch_cpu; });
  const double plain_cpu = MedianOf(seen, [](const Round& r) { return r.plain_cpu; });
  const double ratio = MedianOf(seen, [](const Round& r) {
    return (r.rates.out + r.rates.in) / (r.rates.put + r.rates.fetch);
  });
  std::printf("%-5s 64KiB*%d %9.1f %10.1f %10.1f %10.1f %8.3f\n", way->name.c_str(), kSmallCount,
              put / 1e9, fetch / 1e9, out / 1e9, in / 1e9, ratio);
  std::printf("processor time for each of them: put %.2f us, fetch + wait %.2f us, plain %.2f us\n",
              put_cpu, fetch_cpu, plain_cpu);
  (*report)["rows"].push_back({{"tier", way->name},
                               {"bytes", kSmall},
                               {"count", kSmallCount},
                               {"put_bytes_per_second", put},
                               {"fetch_bytes_per_second", fetch},
                               {"plain_out_bytes_per_second", out},
                               {"plain_in_bytes_per_second", in},
                               {"put_cpu_us", put_cpu},
                               {"fetch_cpu_us", fetch_cpu},
                               {"plain_cpu_us", plain_cpu}});
  (*report)["ratios"][absl::StrCat("small_64kib_vs_", way->name, "_copy")] = ratio;
  return absl::OkStatus();
}

}  // namespace hyperframes
