// Which GPUs a gang gets: all of its ranks, or none. Pure.
#ifndef HYPERFRAMES_COORDINATOR_JOBS_PLACEMENT_H_
#define HYPERFRAMES_COORDINATOR_JOBS_PLACEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

struct FreeGpu {
  std::string node;
  std::string uuid;
  int32_t index = 0;
  bool lends = false;  // Holds other jobs' leases: taken only when no other is left on the node.
};

struct Seat {
  std::string node;
  std::string gpu;
  int32_t local_rank = 0;
  int32_t local_world_size = 0;
};

// A seat for every rank, ranks of a node next to each other. PACK takes the fewest nodes and, among
// those, the fullest that fit; SPREAD takes one GPU a node in turn, nodes with most free GPUs
// first. ResourceExhausted: fewer than `ranks` GPUs are free. The same input gives the same seats.
absl::StatusOr<std::vector<Seat>> PlaceGang(int ranks, v1::JobSpec::Placement placement,
                                            const std::vector<FreeGpu>& free);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_JOBS_PLACEMENT_H_
