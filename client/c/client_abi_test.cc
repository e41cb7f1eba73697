// hf_call against a coordinator with canned answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "client/c/hyperframes.h"
#include "client/cpp/fake_coordinator.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

class ClientAbiTest : public ::testing::Test {
 protected:
  ClientAbiTest() {
    v1::Job job;
    job.set_id("job-1");
    job.set_state(v1::JOB_STATE_RUNNING);
    job.set_version(1LL << 60);
    coordinator_.AddJob(job);
    coordinator_.set_log("job-1", 0, "hello");
    v1::FramePlan plan;
    plan.set_id("p");
    coordinator_.set_plan("job-1", plan);
    v1::Checkpoint checkpoint;
    checkpoint.set_id("ckpt-1");
    checkpoint.set_state(v1::CHECKPOINT_STATE_PREPARED);
    checkpoint.set_global_step(50);
    checkpoint.add_shards()->add_micro_batches(3);
    coordinator_.AddCheckpoint(checkpoint);
    EXPECT_EQ(hf_client_open(coordinator_.address().c_str(), "{\"timeout_s\": 5}", &client_),
              HF_OK);
  }
  ~ClientAbiTest() override { hf_client_close(client_); }

  hf_code Call(const std::string& method, const std::string& request) {
    char* response = nullptr;
    const hf_code code = hf_call(client_, method.c_str(), request.c_str(), 0, &response);
    response_ = response == nullptr ? nlohmann::json() : nlohmann::json::parse(response);
    hf_free(response);
    return code;
  }

  FakeCoordinator coordinator_;
  hf_client* client_ = nullptr;
  nlohmann::json response_;
};

TEST_F(ClientAbiTest, EveryMethodOfTheHeaderIsThere) {
  const std::pair<const char*, const char*> calls[] = {
      {"SubmitJob", R"({"spec": {"name": "x", "command": ["true"], "ranks": 1}})"},
      {"GetJob", R"({"id": "job-1"})"},
      {"ListJobs", "{}"},
      {"WatchJob", R"({"id": "job-1", "afterVersion": 5, "wait_s": 0.1})"},
      {"ReadLog", R"({"job_id": "job-1"})"},
      {"ListNodes", ""},
      {"CreatePlan", R"({"job_id": "job-1", "world_size": 1})"},
      {"GetPlan", R"({"job_id": "job-1"})"},
      {"CancelJob", R"({"id": "job-1"})"},
      {"BeginCheckpoint", R"({"caller": {"job_id": "job-1"}, "name": "s", "global_step": 50})"},
      {"PrepareCheckpoint", R"({"checkpoint_id": "ckpt-1", "shard": {"micro_batches": [3, 1]}})"},
      {"CommitCheckpoint", R"({"checkpoint_id": "ckpt-1"})"},
      {"AbortCheckpoint", R"({"checkpoint_id": "ckpt-1", "reason": "x"})"},
      {"WatchCheckpoint", R"({"checkpoint_id": "ckpt-1", "known": "CHECKPOINT_STATE_OPEN"})"},
      {"RetireCheckpoint", R"({"checkpoint_id": "ckpt-1"})"},
      {"ListCheckpoints", R"({"committed_only": false})"},
      {"PreemptJob", R"({"id": "job-1"})"},
      {"AttachJob", R"({"group_key": "k", "rank": 0, "world_size": 1})"},
      {"DetachJob", R"({"job_id": "job-1"})"},
  };
  for (const auto& [method, request] : calls) {
    EXPECT_EQ(Call(method, request), HF_OK) << method << ": " << hf_last_error();
    EXPECT_EQ(coordinator_.calls(method), 1) << method;
  }
}

TEST_F(ClientAbiTest, AnswersComeInSnakeCaseWithWholeIntegersAsStrings) {
  ASSERT_EQ(Call("GetJob", R"({"id": "job-1"})"), HF_OK) << hf_last_error();
  EXPECT_EQ(response_["state"], "JOB_STATE_RUNNING");
  EXPECT_EQ(response_["version"], "1152921504606846976");
  EXPECT_EQ(response_["state_age_s"], 0);
}

TEST_F(ClientAbiTest, ACheckpointComesWithItsStateAndItsOrderTable) {
  ASSERT_EQ(Call("CommitCheckpoint", R"({"checkpoint_id": "ckpt-1"})"), HF_OK) << hf_last_error();
  EXPECT_EQ(response_["state"], "CHECKPOINT_STATE_PREPARED");
  EXPECT_EQ(response_["global_step"], "50");
  EXPECT_EQ(response_["shards"][0]["micro_batches"][0], "3");
  EXPECT_EQ(Call("CommitCheckpoint", R"({"checkpoint_id": "ckpt-2"})"), HF_NOT_FOUND);
}

TEST_F(ClientAbiTest, AServerThatIsStartingUpIsAskedAgain) {
  coordinator_.Script("GetJob", grpc::Status(grpc::StatusCode::UNAVAILABLE, "starting"));
  EXPECT_EQ(Call("GetJob", R"({"id": "job-1"})"), HF_OK) << hf_last_error();
  EXPECT_EQ(coordinator_.calls("GetJob"), 2);
}

TEST_F(ClientAbiTest, TheServersCodeAndSentenceArrive) {
  EXPECT_EQ(Call("GetJob", R"({"id": "nope"})"), HF_NOT_FOUND);
  EXPECT_THAT(std::string(hf_last_error()), HasSubstr("nope"));
  coordinator_.Script("SubmitJob",
                      grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full"));
  EXPECT_EQ(Call("SubmitJob", "{}"), HF_RESOURCE_EXHAUSTED);
  EXPECT_THAT(std::string(hf_last_error()), HasSubstr("the queue is full"));
}

}  // namespace
}  // namespace hyperframes
