#include "client/cpp/message_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

TEST(MessageJson, BothSpellingsAreReadAndSnakeCaseIsWritten) {
  v1::JobSpec snake, camel;
  ASSERT_TRUE(ParseMessage(R"({"working_directory": "/srv"})", "job", &snake).ok());
  ASSERT_TRUE(ParseMessage(R"({"workingDirectory": "/srv"})", "job", &camel).ok());
  EXPECT_EQ(snake.working_directory(), "/srv");
  EXPECT_EQ(camel.working_directory(), "/srv");
  EXPECT_THAT(*WriteMessage(snake), HasSubstr("\"working_directory\":\"/srv\""));
}

TEST(MessageJson, UnknownFieldsAreRefusedByName) {
  v1::JobSpec spec;
  const absl::Status status = ParseMessage(R"({"gpus": 2})", "job.json", &spec);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("gpus"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("job.json"));
}

TEST(MessageJson, TruncatedTextIsRefusedAtEveryLength) {
  const std::string whole = R"({"name":"a","command":["python","train.py"],"ranks":2})";
  for (size_t length = 1; length < whole.size(); ++length) {
    v1::JobSpec spec;
    EXPECT_TRUE(absl::IsInvalidArgument(ParseMessage(whole.substr(0, length), "job", &spec)))
        << whole.substr(0, length);
  }
}

TEST(MessageJson, WrongKindsAreRefusedWithTheValue) {
  v1::JobSpec spec;
  const absl::Status status = ParseMessage(R"({"ranks": "many"})", "job", &spec);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("many"));
}

TEST(MessageJson, ErrorsStayShortWhateverTheText) {
  v1::JobSpec spec;
  const std::string noise = "{\"name\": [" + std::string(1 << 20, 'x') + "\"}";
  const absl::Status status = ParseMessage(noise, "job", &spec);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_LE(status.message().size(), 512u);
}

TEST(MessageJson, WhatWasWrittenReadsBackEqual) {
  v1::Job job;
  job.set_id("job-1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_version(1LL << 60);
  v1::Job again;
  ASSERT_TRUE(ParseMessage(*WriteMessage(job), "job", &again).ok());
  EXPECT_EQ(job.SerializeAsString(), again.SerializeAsString());
}

}  // namespace
}  // namespace hyperframes
