// What the process that measures collectives says to the one that asked, a line of JSON each. It
// speaks as it goes, so that it is known what it was doing when it is ended.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_COLLECTIVE_LINES_H_
#define HYPERFRAMES_CLIENT_DOCTOR_COLLECTIVE_LINES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/doctor/facts.h"

namespace hyperframes {
namespace doctor {

// Everything that it has said.
struct CollectiveAnswer {
  std::string doing = "starting";              // Last.
  absl::Duration since;                        // When it began to, from its own start.
  absl::Duration longest = absl::Seconds(15);  // What takes longer than that hangs.
  bool ready = false;                          // Everything that takes long is behind it.
  std::vector<PathFacts> measured;  // Of the two collectives: kind, speed, latency, status.
  absl::Status status;              // Why there is nothing else.
};

std::string DoingLine(const std::string& doing, absl::Duration longest, absl::Duration since);
std::string ReadyLine();
// Kind, and status or speed and latency.
std::string MeasuredLine(const PathFacts& path);
std::string FailedLine(const absl::Status& status);

// What cannot be read is left out: it comes from a process that may have been ended in a word.
CollectiveAnswer ReadCollectiveLines(const std::string& lines);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_COLLECTIVE_LINES_H_
