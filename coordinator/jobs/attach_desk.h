// Ranks of programs that others started (torchrun, a shell) become jobs here: seats for processes
// that run already. It launches nothing; their agents watch them.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_ATTACH_DESK_H_
#define HYPERFRAMES_COORDINATOR_JOBS_ATTACH_DESK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "coordinator/jobs/agent_client.h"
#include "coordinator/jobs/job_book.h"
#include "coordinator/membership/node_registry.h"
#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

// Thread-safe.
class AttachDesk {
 public:
  // Everything must outlive the desk.
  AttachDesk(int64_t epoch, JobBook* book, const NodeRegistry* registry, AgentClient* agents)
      : epoch_(epoch), book_(book), registry_(registry), agents_(agents) {}

  // Jobs.AttachJob and Jobs.DetachJob of coordinator.proto; InvalidArgument names the field.
  absl::StatusOr<v1::AttachJobResponse> Attach(const v1::AttachJobRequest& request)
      HF_EXCLUDES(mutex_);
  absl::StatusOr<JobBook::Record> Detach(const v1::DetachJobRequest& request);

 private:
  absl::StatusOr<Node> FindNode(const v1::AttachJobRequest& request) const;
  absl::StatusOr<std::string> PickGpu(const v1::AttachJobRequest& request, const Node& node) const;
  // The job with this rank's seat taken; OK also when the same process has it already.
  absl::StatusOr<JobBook::Record> TakeSeat(const v1::AttachJobRequest& request, const Node& node);
  absl::StatusOr<v1::AttachJobResponse> AskAgent(const v1::JobRecord& job, int rank,
                                                 const Node& node);
  // A rank that cannot attach ends the job: the others would wait for it.
  void Fail(const std::string& job, int rank, const absl::Status& status);

  const int64_t epoch_;
  JobBook* const book_;
  const NodeRegistry* const registry_;
  AgentClient* const agents_;
  Mutex mutex_;  // One rank at a time from its look at the GPUs to its seat.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_ATTACH_DESK_H_
