// The speed of collectives, measured in a process of its own: a collective that hangs holds its
// GPUs until its process ends, and NCCL may end its process.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_COLLECTIVE_FACTS_H_
#define HYPERFRAMES_CLIENT_DOCTOR_COLLECTIVE_FACTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/doctor/facts.h"
#include "common/clock.h"

namespace hyperframes {
namespace doctor {

// Of the time for everything: what sources before this one leave for measuring.
constexpr absl::Duration kCollectivesTime = absl::Milliseconds(500);

// Comes behind CUDA's source, which finds the GPUs. It connects them while that one still copies,
// and measures when its turn has come: one path each for all-reduce and send/recv, or none where
// there are fewer than two GPUs.
class CollectiveSource final : public FactSource {
 public:
  // Starts `command` (a program that calls MeasureCollectives with its standard input and output).
  CollectiveSource(std::vector<std::string> command, const Clock* clock);
  ~CollectiveSource() override;  // Ends it.

  std::string name() const override { return "NCCL"; }
  // Never waits much longer than `deadline`: a process that does not even end is left behind.
  void Collect(absl::Time deadline, Facts* facts) override;

 private:
  struct Process;
  const Clock* const clock_;
  const absl::Time started_;
  const std::shared_ptr<Process> process_;
};

// The part without a process: what it said in the `time` that it had, and how it ended. Adds both
// paths, from the first to the last of the GPUs that CUDA sees. What took longer than it ever
// should is a fault; what only came to no end in the time given was not measured.
void AddCollectives(const std::string& lines, const absl::Status& ended, absl::Duration time,
                    Facts* facts);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_COLLECTIVE_FACTS_H_
