// The pre-flight of a job of several ranks: collectives measured in the job's own process group, by
// whoever has that group, and judged here as the doctor judges its own.
#ifndef HYPERFRAMES_CLIENT_C_UNFIT_COLLECTIVES_H_
#define HYPERFRAMES_CLIENT_C_UNFIT_COLLECTIVES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/doctor/facts.h"

namespace hyperframes {

struct JobCollectives {
  std::vector<std::string> gpus;         // UUIDs, one per rank, in the order of ranks.
  std::vector<doctor::PathFacts> paths;  // Kind, and speed or status.
};

// {"gpus": [uuid...], "measured": [{"kind": "all-reduce"|"send-receive", "bytes": N, "seconds": S}
// or {"kind", "error": "it is not done after 3 s"}...]}: `bytes` of each rank, all-reduced or sent
// to the next rank of a ring in so many seconds of the slowest rank. "measured" may be missing: who
// asks wants to know what is promised. InvalidArgument names the field.
absl::StatusOr<JobCollectives> ReadJobCollectives(const std::string& measured_json);

// {"promised_bytes_per_second", "promised_by", "bus_bytes_per_second": {kind: N...}, "unfit":
// [{"kind", "from", "to", "cause", "remedy", "sentence"}...]}. Nothing is promised, and no speed
// unfit, where a rank's GPU is not among `facts`: it is on another node, and so is what is between.
// `facts`: the node's GPUs, of which those of the job take part.
std::string JudgeRealCollectives(const JobCollectives& job, doctor::Facts facts);

// The same of simulated GPUs, which promise so many bytes per second; 0: nothing.
std::string JudgeSimulatedCollectives(const JobCollectives& job, doctor::Facts facts,
                                      double promise);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_C_UNFIT_COLLECTIVES_H_
