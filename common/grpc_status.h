// The one place that turns absl::Status into grpc::Status and back.
#ifndef HYPERFRAMES_COMMON_GRPC_STATUS_H_
#define HYPERFRAMES_COMMON_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace hyperframes {

// Same code, same message, cut to 2 KiB at a character: gRPC carries messages in headers, and a
// header over 8 KiB turns a clear error into a broken stream.
grpc::Status ToGrpc(const absl::Status& status);

// Same code, same message, cut likewise. A code outside the standard ones becomes Unknown.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_GRPC_STATUS_H_
