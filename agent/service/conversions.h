// Between the messages of proto/hyperframes/v1 and this node's plain values.
#ifndef HYPERFRAMES_AGENT_SERVICE_CONVERSIONS_H_
#define HYPERFRAMES_AGENT_SERVICE_CONVERSIONS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "agent/arena/lease.h"
#include "agent/service/node.h"
#include "agent/supervisor/supervisor.h"
#include "hyperframes/v1/agent.pb.h"
#include "hyperframes/v1/membership.pb.h"

namespace hyperframes {

// Never carries the token.
v1::LeaseReport ToProto(const LeaseRecord& record);
v1::WorkerReport ToProto(const WorkerInfo& info, const CountersReading& counters);
v1::NetworkMeasurement ToProto(const NetworkFigure& figure);
// InvalidArgument: a tier that no lease can have.
absl::StatusOr<LeaseRecord> FromProto(const v1::PrepareLeaseRequest& request);

// GPUs in order, with what is lent and used now.
std::vector<v1::GpuInfo> GpusOf(Node* node);
// Bytes of host memory that may be lent; 0 without a host device.
Bytes HostLendable(Node* node);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_CONVERSIONS_H_
