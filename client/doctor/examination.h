// Asks all sources, within a time, and does not wait for a driver that hangs.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_EXAMINATION_H_
#define HYPERFRAMES_CLIENT_DOCTOR_EXAMINATION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/doctor/facts.h"

namespace hyperframes {
namespace doctor {

constexpr absl::Duration kUsualTime = absl::Milliseconds(2800);

// The sources for this machine: limits, then the simulated GPUs that `host_devices` describes (as
// HYPERFRAMES_HOST_DEVICES does), or, when it is empty, the real ones. InvalidArgument: it cannot
// be read. `collectives` is the program that measures collectives, with its arguments (see
// CollectiveSource); where it is empty they are not measured.
absl::StatusOr<std::vector<std::unique_ptr<FactSource>>> SourcesHere(
    const std::string& host_devices, std::vector<std::string> collectives = {});

// Asks the sources in their order; each is told to be done within `time`, all together. One that is
// not back long after (`patience` more) is given up, and named in Facts::stuck: a thread then stays
// in it, so the process must end by _exit.
Facts Examine(std::vector<std::unique_ptr<FactSource>> sources, absl::Duration time = kUsualTime,
              absl::Duration patience = absl::Seconds(7));

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_EXAMINATION_H_
