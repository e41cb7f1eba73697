#include "common/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

std::string Bounded(std::string message) {
  constexpr size_t kMost = 2048;
  if (message.size() <= kMost) return message;
  size_t end = kMost - 3;
  // Not in the middle of a UTF-8 character.
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  message.resize(end);
  return message + "...";
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Bounded(std::string(status.message())));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  if (code < 0 || code > 16) {
    return absl::UnknownError(
        absl::StrCat("status code ", code, ": ", Bounded(status.error_message())));
  }
  return absl::Status(static_cast<absl::StatusCode>(code), Bounded(status.error_message()));
}

}  // namespace hyperframes
