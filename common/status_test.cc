#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/exit_code.h"
#include "common/grpc_status.h"

namespace hyperframes {
namespace {

TEST(GrpcStatus, KeepsEveryCodeAndMessageBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
    EXPECT_EQ(static_cast<int>(ToGrpc(status).error_code()), code);
  }
}

TEST(GrpcStatus, BoundsMessagesAtACharacter) {
  std::string message = "x";
  for (int i = 0; i < 5000; ++i) message += "\xC3\xA9";  // é
  const grpc::Status cut = ToGrpc(absl::InternalError(message));
  EXPECT_LE(cut.error_message().size(), 2048u);
  EXPECT_GT(cut.error_message().size(), 2000u);
  EXPECT_EQ(cut.error_message().substr(cut.error_message().size() - 5), "\xC3\xA9...");
  EXPECT_LE(FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, message)).message().size(), 2048u);
}

TEST(GrpcStatus, MakesStrangeCodesUnknown) {
  const absl::Status status = FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(20), "odd"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("20"));
}

TEST(ExitCode, FollowsTheDocumentedTable) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCode(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCode(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCode(absl::NotFoundError("")), 4);
  EXPECT_EQ(ExitCode(absl::PermissionDeniedError("")), 5);
  EXPECT_EQ(ExitCode(absl::ResourceExhaustedError("")), 5);
  EXPECT_EQ(ExitCode(absl::AbortedError("")), 75);
  EXPECT_EQ(ExitCode(absl::DeadlineExceededError("")), 124);
}

}  // namespace
}  // namespace hyperframes
