// The speed of paths, by copying over them.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_PATH_FACTS_H_
#define HYPERFRAMES_CLIENT_DOCTOR_PATH_FACTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/host/host_machine.h"
#include "client/doctor/facts.h"
#include "common/clock.h"

namespace hyperframes {
namespace doctor {

// Simulated GPUs and their links, each in both directions.
class SimulatedPathSource final : public FactSource {
 public:
  SimulatedPathSource(std::unique_ptr<HostMachine> machine, const Clock* clock)
      : machine_(std::move(machine)), clock_(clock) {}

  std::string name() const override { return "the simulated links"; }
  void Collect(absl::Time deadline, Facts* facts) override;

 private:
  const std::unique_ptr<HostMachine> machine_;
  const Clock* const clock_;
};

// The GPUs that CUDA sees. Every GPU's way to and from host memory, then to its neighbours, then to
// all others. Opens the driver, and a context on each GPU (a third of a second).
class CudaPathSource final : public FactSource {
 public:
  // Where there are several, `leaves` so much of the time to sources behind it.
  explicit CudaPathSource(const Clock* clock, absl::Duration leaves = absl::ZeroDuration())
      : clock_(clock), leaves_(leaves) {}

  std::string name() const override { return "CUDA"; }
  void Collect(absl::Time deadline, Facts* facts) override;

 private:
  const Clock* const clock_;
  const absl::Duration leaves_;
};

// What a simulated link from `gpu` promises; 0: nothing.
double SimulatedPromise(const HostMachine& machine, const Device& gpu, PathKind kind);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_PATH_FACTS_H_
