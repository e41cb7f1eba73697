#include "common/grpc_log.h"

#include <glog/logging.h>
#include <grpc/support/log.h>

#include <cstring>
#include <string>

namespace hyperframes {
namespace {

constexpr size_t kMostBytes = 512;

void ToGlog(gpr_log_func_args* line) {
  const char* const file = std::strrchr(line->file, '/');
  VLOG(1) << "gRPC " << (file != nullptr ? file + 1 : line->file) << ":" << line->line << " "
          << std::string(line->message, strnlen(line->message, kMostBytes));
}

}  // namespace

void RouteGrpcLog() { gpr_set_log_function(ToGlog); }

}  // namespace hyperframes
