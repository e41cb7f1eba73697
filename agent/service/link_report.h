// Measures the paths of this node's GPUs: to each other and to host memory.
#ifndef HYPERFRAMES_AGENT_SERVICE_LINK_REPORT_H_
#define HYPERFRAMES_AGENT_SERVICE_LINK_REPORT_H_

#include <vector>

#include "absl/time/time.h"
#include "agent/device/host/host_machine.h"
#include "hyperframes/v1/plan.pb.h"

namespace hyperframes {

// Copies for at most about `time_limit` over each path, one after the other, so that they do not
// disturb one another. A path without memory to copy with is left out, with a line in the log.
std::vector<v1::LinkProfile> MeasureLinks(HostMachine* machine,
                                          absl::Duration time_limit = absl::Milliseconds(60));

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_LINK_REPORT_H_
