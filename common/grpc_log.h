// gRPC writes its own view of every error to stderr, over several lines and without a remedy. The
// daemons say what happened in a sentence of their own; gRPC's lines are for whoever looks for the
// cause of the cause.
#ifndef HYPERFRAMES_COMMON_GRPC_LOG_H_
#define HYPERFRAMES_COMMON_GRPC_LOG_H_

namespace hyperframes {

// Sends gRPC's lines to glog at verbosity 1 (GLOG_v=1 shows them), cut to 512 bytes each. For the
// main of a program, before its first server or channel; never for a library, whose host has its
// own gRPC.
void RouteGrpcLog();

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_GRPC_LOG_H_
