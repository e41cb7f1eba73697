// Who gets GPUs next: one look at queue, reservations and cluster, without side effects.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_ADMISSION_H_
#define HYPERFRAMES_COORDINATOR_JOBS_ADMISSION_H_

#include <string>
#include <vector>

#include "coordinator/jobs/job_book.h"
#include "coordinator/jobs/placement.h"
#include "coordinator/membership/node_registry.h"

namespace hyperframes {

struct ClusterView {
  std::vector<FreeGpu> free;  // On ALIVE nodes, healthy, without a rank of any job.
  int nodes = 0;
  int alive_nodes = 0;
  int gpus = 0;      // On all nodes.
  int reserved = 0;  // By ranks of jobs.
  int unusable = 0;  // On nodes that are not ALIVE, or unhealthy.
};

// `active` are the jobs that may hold GPUs. A RESTARTING job keeps its GPUs for its next attempt
// while all of them can be used; `restarting` is the id of the job that is placed again, or "".
ClusterView ViewCluster(const std::vector<Node>& nodes, const std::vector<JobBook::Record>& active,
                        const std::string& restarting = "");

struct Verdict {
  bool admitted = false;
  std::vector<Seat> seats;  // By rank, when admitted.
  std::string reason;       // "waiting_for_gpus", "not_enough_gpus" otherwise.
  std::string message;      // What is missing.
};

// All ranks of the job or none. When admitted, takes the seats out of `view`.
Verdict Admit(const v1::JobRecord& job, ClusterView* view);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_ADMISSION_H_
