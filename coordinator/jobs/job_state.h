// Room: coordinator/jobs. The life of a job: a durable state machine over the store, gang
// admission, and a reconciler that drives agents through a narrow interface. It knows no gRPC.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_JOB_STATE_H_
#define HYPERFRAMES_COORDINATOR_JOBS_JOB_STATE_H_

#include "coordinator/wire/job_state_name.h"
#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

// The only moves there are; everything else is refused.
bool LegalJobMove(v1::JobState from, v1::JobState to);

// RUNNING, or CHECKPOINTING, which is RUNNING while a checkpoint is taken.
bool RanksRun(v1::JobState state);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_JOB_STATE_H_
