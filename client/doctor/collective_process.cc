#include "client/doctor/collective_process.h"

#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/nccl/collective_probe.h"
#include "agent/device/nccl/nccl_library.h"
#include "client/doctor/collective_lines.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace doctor {
namespace {

constexpr Bytes kMostBytes = 256 * kMiB;  // NVLink is at a third of its speed with 16 MiB.
constexpr absl::Duration kShortest = absl::Milliseconds(30);
// What should never take longer, however slow the machine is.
constexpr absl::Duration kPreparation = absl::Seconds(15);
constexpr absl::Duration kFirstOne = absl::Milliseconds(1500);  // Connections are made in it.
constexpr absl::Duration kFirstOneAtMost = absl::Seconds(5);    // Where nobody ends it earlier.
constexpr absl::Duration kLaterOnes = absl::Milliseconds(200);

// The instant that `input` names; InfinitePast: it names none.
absl::Time ReadDeadline(int input) {
  std::string text;
  char piece[64];
  for (ssize_t got = 0; (got = read(input, piece, sizeof piece)) > 0 && text.size() < 64;) {
    text.append(piece, static_cast<size_t>(got));
  }
  int64_t nanoseconds = 0;
  if (!absl::SimpleAtoi(text, &nanoseconds)) return absl::InfinitePast();
  return absl::FromUnixNanos(nanoseconds);
}

class Measurer {
 public:
  explicit Measurer(const std::function<void(const std::string&)>& say)
      : say_(say), started_(MonotonicClock()->Now()) {}

  absl::Status Prepare() {
    Begin("starting CUDA");
    CudaMachineOptions options;
    options.host_bytes = 0;
    HF_ASSIGN_OR_RETURN(machine_, CudaMachine::Open(options));
    const std::string all = absl::StrCat(machine_->gpus().size(), " GPUs");
    Begin("opening NCCL");
    // Its ranks find each other inside this machine: no network has a part in it.
    setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
    HF_ASSIGN_OR_RETURN(library_, NcclLibrary::Open("", ""));
    Begin(absl::StrCat("opening contexts on ", all));
    HF_ASSIGN_OR_RETURN(probe_, CollectiveProbe::Open(machine_.get(), library_.get(), kMostBytes,
                                                      MonotonicClock()));
    Begin(absl::StrCat("connecting ", all));
    HF_RETURN_IF_ERROR(probe_->Connect(In(kPreparation)));
    Begin("running a first all-reduce", kFirstOne);
    HF_RETURN_IF_ERROR(probe_->WarmUp(Collective::kAllReduce, In(kFirstOneAtMost)));
    Begin("running a first send/recv", kFirstOne);
    return probe_->WarmUp(Collective::kSendReceive, In(kFirstOneAtMost));
  }

  void Measure(PathKind kind, absl::Time deadline) {
    PathFacts path;
    path.kind = kind;
    const bool reduces = kind == PathKind::kAllReduce;
    if (MonotonicClock()->Now() + kShortest > deadline) {
      path.status = absl::OutOfRangeError("the time was up before its turn");
    } else {
      Begin(reduces ? "running all-reduces" : "running send/recvs", kLaterOnes);
      const auto speed =
          probe_->Measure(reduces ? Collective::kAllReduce : Collective::kSendReceive, deadline);
      path.status = speed.status();
      if (speed.ok()) {
        path.bytes_per_second = speed->bus_bytes_per_second;
        path.latency = speed->latency;
      }
    }
    say_(MeasuredLine(path));
  }

 private:
  static absl::Time In(absl::Duration time) { return MonotonicClock()->Now() + time; }
  void Begin(const std::string& doing, absl::Duration longest = kPreparation) {
    say_(DoingLine(doing, longest, MonotonicClock()->Now() - started_));
  }

  const std::function<void(const std::string&)>& say_;
  const absl::Time started_;
  std::unique_ptr<CudaMachine> machine_;
  std::unique_ptr<NcclLibrary> library_;
  std::unique_ptr<CollectiveProbe> probe_;
};

}  // namespace

void MeasureCollectives(int input, const std::function<void(const std::string&)>& say) {
  // Never destroyed: what hangs may still use it.
  auto* const measurer = new Measurer(say);
  const absl::Status prepared = measurer->Prepare();
  if (!prepared.ok()) {
    say(FailedLine(prepared));
    return;
  }
  say(ReadyLine());
  const absl::Time deadline = ReadDeadline(input);
  const absl::Time now = MonotonicClock()->Now();
  measurer->Measure(PathKind::kAllReduce, now + (deadline - now) / 2);
  measurer->Measure(PathKind::kSendReceive, deadline);
}

}  // namespace doctor
}  // namespace hyperframes
