// Measures the paths of a node's GPUs: to each other and to host memory. What could not be measured
// is told with a reason: a plan never counts on a promised speed.
#ifndef HYPERFRAMES_AGENT_SERVICE_LINK_REPORT_H_
#define HYPERFRAMES_AGENT_SERVICE_LINK_REPORT_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/device/gpu_machine.h"
#include "hyperframes/v1/plan.pb.h"

namespace hyperframes {

struct UnmeasuredLink {
  std::string from;
  std::string to;
  // One of "unusable" (a GPU that does not lend), "no_access" (no peer access), "no_room" (too
  // little free memory to copy with), "copy_failed", "probe_failed" (the measuring process ended
  // early) and "timed_out" (it was ended).
  std::string reason;
  std::string message;  // At most 256 bytes.
};

struct LinkReport {
  std::vector<v1::LinkProfile> links;
  std::vector<UnmeasuredLink> unmeasured;
};

// Copies for at most about `time_limit` over each path, one after the other, so that they do not
// disturb one another. On CUDA it makes a context on every GPU, so an agent leaves it to a process
// that ends afterwards: `told`, where there is one, hears each path as soon as it is known.
LinkReport MeasureLinks(const GpuMachine& machine,
                        absl::Duration time_limit = absl::Milliseconds(60),
                        const std::function<void(const LinkReport& one)>& told = nullptr);

// Every path that MeasureLinks tries, as (from, to).
std::vector<std::pair<std::string, std::string>> PathsOf(const GpuMachine& machine);

// A line of JSON for every path.
std::string WriteLinkLines(const LinkReport& report);
// Reads them back. InvalidArgument names the line that is none; an unfinished last line is left
// out.
absl::StatusOr<LinkReport> ReadLinkLines(const std::string& text);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_LINK_REPORT_H_
