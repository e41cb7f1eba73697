// Who gets GPUs next: one look at queue, reservations and cluster, without side effects.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_ADMISSION_H_
#define HYPERFRAMES_COORDINATOR_JOBS_ADMISSION_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/jobs/job_book.h"
#include "coordinator/jobs/placement.h"
#include "coordinator/membership/node_registry.h"

namespace hyperframes {

struct ClusterView {
  std::vector<FreeGpu> free;  // On ALIVE nodes, healthy, without a rank of any job.
  int nodes = 0;
  int alive_nodes = 0;
  int gpus = 0;      // On all nodes.
  int usable = 0;    // On ALIVE nodes and healthy, taken or free.
  int reserved = 0;  // By ranks of jobs.
  int unusable = 0;  // Neither free nor reserved.
};

// `active` are the jobs that may hold GPUs. A RESTARTING job keeps its GPUs for its next attempt
// while all of them can be used; `restarting` is the id of the job that is placed again, or "". A
// GPU is also taken while its node reports a worker on it: one that nobody wants any more has been
// told to stop and may still run.
ClusterView ViewCluster(const std::vector<Node>& nodes, const std::vector<JobBook::Record>& active,
                        const std::string& restarting = "");

struct Verdict {
  bool admitted = false;
  std::vector<Seat> seats;  // By rank, when admitted.
  std::string reason;       // "waiting_for_gpus", "not_enough_gpus" otherwise.
  std::string message;      // What is missing.
  bool passed = false;      // Not admitted, and a later job was: its patience begins.
};

// All ranks of the job or none. When admitted, takes the seats out of `view`.
Verdict Admit(const v1::JobRecord& job, ClusterView* view);

// One look at the whole queue, in its order; a verdict for each. A job that fits passes those ahead
// of it that do not. The first that could fit if others ended is the head: once it has been passed
// for `patience`, all free GPUs are held for it and nobody passes any more, so that a large gang is
// not kept waiting for ever by small ones. How long jobs run is not known, so nothing that is
// admitted meanwhile is sure not to delay it. Zero patience: held at once.
std::vector<Verdict> AdmitQueue(const std::vector<JobBook::Record>& queued, absl::Duration patience,
                                absl::Time wall_now, ClusterView* view);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_ADMISSION_H_
