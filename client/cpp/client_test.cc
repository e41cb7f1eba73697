#include "client/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "client/cpp/channel.h"
#include "client/cpp/fake_coordinator.h"
#include "common/protocol_version.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const grpc::Status kDown(grpc::StatusCode::UNAVAILABLE, "starting up");

class ClientTest : public ::testing::Test {
 protected:
  // A client that does not really sleep between attempts.
  std::unique_ptr<Client> Connect(const std::string& address) {
    ClientOptions options;
    options.address = address;
    options.seed = 1;
    options.clock = &clock_;
    options.sleep = [this](absl::Duration wait) {
      ++sleeps_;
      clock_.Advance(wait);
    };
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return std::move(client).value();
  }

  static v1::Job JobIn(v1::JobState state, int64_t version) {
    v1::Job job;
    job.set_id("job-1");
    job.set_state(state);
    job.set_version(version);
    job.set_message("a sentence");
    return job;
  }

  static v1::GetJobRequest Get(const std::string& id) {
    v1::GetJobRequest request;
    request.set_id(id);
    return request;
  }

  FakeClock clock_;
  int sleeps_ = 0;
  FakeCoordinator coordinator_;
};

TEST_F(ClientTest, IdempotentCallsOutliveAServerThatIsStartingUp) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 3));
  coordinator_.Script("GetJob", kDown);
  coordinator_.Script("GetJob", kDown);
  const auto job = Connect(coordinator_.address())->GetJob(Get("job-1"));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->version(), 3);
  EXPECT_EQ(coordinator_.calls("GetJob"), 3);
  EXPECT_EQ(sleeps_, 2);
}

TEST_F(ClientTest, EveryRepeatedSubmitCarriesTheSameKeyAndTwoSubmitsDoNot) {
  coordinator_.Script("SubmitJob", kDown);
  const auto client = Connect(coordinator_.address());
  v1::SubmitJobRequest request;
  request.mutable_spec()->set_name("train");
  ASSERT_TRUE(client->SubmitJob(request).ok());
  ASSERT_TRUE(client->SubmitJob(request).ok());
  const auto submitted = coordinator_.submitted();
  ASSERT_EQ(submitted.size(), 3u);
  EXPECT_EQ(submitted[0].idempotency_key().size(), 32u);
  EXPECT_EQ(submitted[0].idempotency_key(), submitted[1].idempotency_key());
  EXPECT_NE(submitted[1].idempotency_key(), submitted[2].idempotency_key());
}

TEST_F(ClientTest, AKeyOfTheCallersOwnIsKept) {
  v1::SubmitJobRequest request;
  request.set_idempotency_key("mine");
  ASSERT_TRUE(Connect(coordinator_.address())->SubmitJob(request).ok());
  EXPECT_EQ(coordinator_.submitted()[0].idempotency_key(), "mine");
}

TEST_F(ClientTest, TheProtocolVersionIsSent) {
  const auto client = Connect(coordinator_.address());
  ASSERT_TRUE(client->SubmitJob({}).ok());
  EXPECT_EQ(coordinator_.submitted()[0].version().major(), kProtocolMajor);
  ASSERT_TRUE(client->CreatePlan({}).ok());
  EXPECT_EQ(coordinator_.last_create_plan().version().major(), kProtocolMajor);
}

TEST_F(ClientTest, APlanIsAskedForAgainWithTheSameProfileUntilTheCoordinatorIsBack) {
  for (int i = 0; i < 4; ++i) coordinator_.Script("CreatePlan", kDown);
  v1::CreatePlanRequest request;
  request.set_job_id("job-1");
  request.mutable_rank()->set_resident_bytes(7);
  const auto plan =
      Connect(coordinator_.address())->CreatePlan(request, /*timeout=*/absl::Seconds(60));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->plan_id(), "plan-1");
  EXPECT_EQ(coordinator_.calls("CreatePlan"), 5);
  EXPECT_EQ(coordinator_.last_create_plan().rank().resident_bytes(), 7);
}

TEST_F(ClientTest, EveryCallOfACheckpointIsRepeatedAndTellsItsVersion) {
  v1::Checkpoint known;
  known.set_id("ckpt-1");
  known.set_state(v1::CHECKPOINT_STATE_PREPARED);
  coordinator_.AddCheckpoint(known);
  const auto client = Connect(coordinator_.address());
  const auto expect_repeated = [&](const std::string& method, const auto& call) {
    coordinator_.Script(method, kDown);
    const absl::StatusOr<v1::Checkpoint> checkpoint = call();
    ASSERT_TRUE(checkpoint.ok()) << method << ": " << checkpoint.status();
    EXPECT_EQ(checkpoint->id(), "ckpt-1") << method;
    EXPECT_EQ(coordinator_.calls(method), 2) << method;
    EXPECT_EQ(coordinator_.last_caller().version().major(), kProtocolMajor) << method;
    EXPECT_EQ(coordinator_.last_caller().job_id(), "job-1") << method;
  };
  const auto of_rank = [](auto request) {
    request.mutable_caller()->set_job_id("job-1");
    return request;
  };
  const auto of_known = [&](auto request) {
    request.set_checkpoint_id("ckpt-1");
    return of_rank(request);
  };
  expect_repeated("BeginCheckpoint",
                  [&] { return client->BeginCheckpoint(of_rank(v1::BeginCheckpointRequest())); });
  expect_repeated("PrepareCheckpoint", [&] {
    return client->PrepareCheckpoint(of_known(v1::PrepareCheckpointRequest()));
  });
  expect_repeated("CommitCheckpoint", [&] {
    return client->CommitCheckpoint(of_known(v1::CommitCheckpointRequest()));
  });
  expect_repeated("AbortCheckpoint",
                  [&] { return client->AbortCheckpoint(of_known(v1::AbortCheckpointRequest())); });
  expect_repeated("RetireCheckpoint", [&] {
    return client->RetireCheckpoint(of_known(v1::RetireCheckpointRequest()));
  });
  coordinator_.Script("ListCheckpoints", kDown);
  const auto listed = client->ListCheckpoints({});
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(listed->checkpoints_size(), 1);
}

TEST_F(ClientTest, AWatchedCheckpointIsWaitedForAsLongAsWasAsked) {
  v1::Checkpoint known;
  known.set_id("ckpt-1");
  known.set_state(v1::CHECKPOINT_STATE_OPEN);
  coordinator_.AddCheckpoint(known);
  ClientOptions options;
  options.address = coordinator_.address();
  options.timeout = absl::Milliseconds(200);
  const auto client = std::move(Client::Create(options)).value();
  v1::WatchCheckpointRequest request;
  request.set_checkpoint_id("ckpt-1");
  request.set_known(v1::CHECKPOINT_STATE_OPEN);
  request.set_wait_s(0.5);
  const auto seen = client->WatchCheckpoint(request);
  ASSERT_TRUE(seen.ok()) << "longer than the client's own timeout: " << seen.status();
  EXPECT_EQ(seen->state(), v1::CHECKPOINT_STATE_OPEN);
  const absl::Status impatient = client->WatchCheckpoint(request, absl::Milliseconds(50)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(impatient)) << impatient;
}

TEST_F(ClientTest, ARefusedPlanIsAnAnswerAndNotAskedForAgain) {
  coordinator_.Script("CreatePlan", grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no"));
  EXPECT_TRUE(absl::IsResourceExhausted(Connect(coordinator_.address())->CreatePlan({}).status()));
  EXPECT_EQ(coordinator_.calls("CreatePlan"), 1);
}

// Real time and a real server: the wait for the other ranks breaks off when the coordinator dies,
// and the call is answered by the one that listens on its port afterwards.
TEST(ClientAndRestart, ACoordinatorKilledWhileAPlanIsWaitedForLosesNothing) {
  auto first = std::make_unique<FakeCoordinator>();
  const int port = first->port();
  first->HoldPlans();
  ClientOptions options;
  options.address = first->address();
  const auto client = std::move(Client::Create(options)).value();
  absl::StatusOr<v1::CreatePlanResponse> plan = absl::UnknownError("not asked");
  std::thread worker([&] { plan = client->CreatePlan({}, /*timeout=*/absl::Seconds(60)); });
  first->WaitForCalls("CreatePlan", 1);
  first.reset();
  FakeCoordinator second(port);
  worker.join();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->plan_id(), "plan-1");
  EXPECT_GE(second.calls("CreatePlan"), 1);
}

TEST_F(ClientTest, TheServersOwnUnavailableKeepsItsSentence) {
  for (int i = 0; i < 100; ++i) {
    coordinator_.Script("CreatePlan",
                        grpc::Status(grpc::StatusCode::UNAVAILABLE, "node b cannot be asked"));
  }
  const absl::Status status = Connect(coordinator_.address())->CreatePlan({}).status();
  EXPECT_EQ(status.message(), "node b cannot be asked");
}

TEST_F(ClientTest, AnAbsentCoordinatorIsNamedWithItsRemedy) {
  std::string address;
  {
    FakeCoordinator gone;
    address = gone.address();
  }
  const auto client = Connect(address);
  const absl::Status status = client->GetJob(Get("job-1")).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  EXPECT_THAT(std::string(status.message()), HasSubstr("hfcoordinator --listen-address"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("unset HYPERFRAMES_COORDINATOR"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("last error")));
  EXPECT_GT(sleeps_, 1) << "an idempotent call tries again until its deadline";
}

TEST_F(ClientTest, AnswersOfTheServerKeepCodeAndSentence) {
  const absl::Status status = Connect(coordinator_.address())->GetJob(Get("nope")).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "no job \"nope\"");
}

TEST_F(ClientTest, ASilentServerEndsInDeadlineExceeded) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 3));
  v1::WatchJobRequest request;
  request.set_id("job-1");
  request.set_after_version(3);
  request.set_wait_s(30);
  const absl::Status status = Connect(coordinator_.address())
                                  ->WatchJob(request, /*timeout=*/absl::Milliseconds(50))
                                  .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(coordinator_.address()));
}

TEST_F(ClientTest, WaitReturnsTheJobThatHasEnded) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_QUEUED, 1));
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 2));
  coordinator_.AddJob(JobIn(v1::JOB_STATE_FAILED, 3));
  std::vector<v1::JobState> seen;
  const auto job = Connect(coordinator_.address())
                       ->WaitJob("job-1", absl::Seconds(60),
                                 [&seen](const v1::Job& now) { seen.push_back(now.state()); });
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_FAILED);
  // What it is in the end is the answer; what it was before, the callback's.
  EXPECT_THAT(seen, ::testing::Each(::testing::Ne(v1::JOB_STATE_FAILED)));
}

TEST_F(ClientTest, WaitOutlivesACoordinatorThatGoesAway) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 1));
  coordinator_.AddJob(JobIn(v1::JOB_STATE_SUCCEEDED, 2));
  for (int i = 0; i < 20; ++i) coordinator_.Script("WatchJob", kDown);
  const auto job = Connect(coordinator_.address())->WaitJob("job-1", absl::Seconds(600));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ClientTest, WaitThatTimesOutSaysInWhichState) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_QUEUED, 1));
  const absl::Status status =
      Connect(coordinator_.address())->WaitJob("job-1", absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("QUEUED"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("a sentence"));
}

TEST_F(ClientTest, FollowedLogsArriveWholeAndInOrder) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_SUCCEEDED, 2));
  const std::string log = "step 1 loss 5.0\nstep 2 loss 4.0\nstep 3 loss 3.5\n";
  coordinator_.set_log("job-1", 1, log);
  std::string read;
  const auto sink = [&read](const std::string& data) {
    read += data;
    return true;
  };
  const auto client = Connect(coordinator_.address());
  ASSERT_TRUE(client->FollowLog("job-1", 1, 0, true, absl::Seconds(10), sink).ok());
  EXPECT_EQ(read, log);
}

TEST_F(ClientTest, AFollowedLogGoesOnWithTheNextAttemptFromItsBeginning) {
  v1::Job job = JobIn(v1::JOB_STATE_RUNNING, 2);
  job.set_attempt(1);
  coordinator_.AddJob(job);
  coordinator_.set_log("job-1", 0, "first\n", 1);
  std::string read;
  const auto sink = [&](const std::string& data) {
    read += data;
    if (data.empty() && coordinator_.last_log_attempt() == 1) {
      job.set_attempt(2);
      job.set_state(v1::JOB_STATE_SUCCEEDED);
      coordinator_.ReplaceJob(job);
      coordinator_.set_log("job-1", 0, "second\n", 2);
    }
    return true;
  };
  const auto client = Connect(coordinator_.address());
  ASSERT_TRUE(client->FollowLog("job-1", 0, 0, true, absl::Seconds(10), sink).ok());
  EXPECT_EQ(read, "first\nsecond\n");
  EXPECT_EQ(coordinator_.last_log_attempt(), 2);
  read.clear();
  ASSERT_TRUE(client->FollowLog("job-1", 0, 0, true, absl::Seconds(10), sink, 1).ok());
  EXPECT_EQ(coordinator_.last_log_attempt(), 1) << "one attempt alone, which is over";
}

TEST_F(ClientTest, AReaderThatGoesAwayEndsTheFollowingAlsoWhileNothingIsPrinted) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 2));
  coordinator_.set_log("job-1", 0, "hello");
  int quiet = 0;
  const auto sink = [&](const std::string& data) { return !data.empty() || ++quiet < 3; };
  EXPECT_TRUE(Connect(coordinator_.address())
                  ->FollowLog("job-1", 0, 0, true, absl::Seconds(600), sink)
                  .ok());
  EXPECT_EQ(quiet, 3);
}

TEST_F(ClientTest, AFollowedLogOutlivesAnAgentAndACoordinatorThatRestart) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_SUCCEEDED, 2));
  coordinator_.set_log("job-1", 0, std::string(100, 'x'));
  coordinator_.Script("ReadLog", grpc::Status::OK);
  for (int i = 0; i < 30; ++i) coordinator_.Script("ReadLog", kDown);
  coordinator_.Script("GetJob", grpc::Status::OK);
  for (int i = 0; i < 30; ++i) coordinator_.Script("GetJob", kDown);
  std::string read;
  const absl::Status status =
      Connect(coordinator_.address())
          ->FollowLog("job-1", 0, 0, true, absl::Seconds(600), [&read](const std::string& data) {
            read += data;
            return true;
          });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(read, std::string(100, 'x'));
}

TEST_F(ClientTest, TheLogOfAnUnknownJobIsAnErrorEvenWhenFollowed) {
  EXPECT_TRUE(absl::IsNotFound(Connect(coordinator_.address())
                                   ->FollowLog("nope", 0, 0, true, absl::Seconds(600),
                                               [](const std::string&) { return true; })));
}

TEST_F(ClientTest, AFollowedLogOfAJobThatNeverEndsStopsAtTheDeadline) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 2));
  coordinator_.set_log("job-1", 0, "hello");
  const absl::Status status = Connect(coordinator_.address())
                                  ->FollowLog("job-1", 0, 0, true, absl::Seconds(3),
                                              [](const std::string&) { return true; });
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST(ClientOptions, NonsenseIsRefusedBeforeAnyCall) {
  ClientOptions options;
  options.address = "nowhere";
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create(options).status()));
  options.address = "127.0.0.1:0";
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create(options).status()));
  options.address = "127.0.0.1:7461";
  options.timeout = absl::ZeroDuration();
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Create(options).status()));
  options.timeout = absl::Seconds(1);
  options.ca_file = "/no/such/ca.pem";
  const absl::Status status = Client::Create(options).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/ca.pem"));
}

// C13: pings closer together than a server's default limit, or on an idle channel, end in GOAWAY.
TEST(Channel, KeepaliveNeverProvokesAServerAtItsDefaults) {
  const grpc::ChannelArguments arguments = ClientChannelArguments();
  const grpc_channel_args args = arguments.c_channel_args();
  int time_ms = -1, without_calls = -1;
  for (size_t i = 0; i < args.num_args; ++i) {
    const std::string key = args.args[i].key;
    if (key == GRPC_ARG_KEEPALIVE_TIME_MS) time_ms = args.args[i].value.integer;
    if (key == GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS) without_calls = args.args[i].value.integer;
  }
  EXPECT_GT(time_ms, kServerShortestPingMs);
  EXPECT_EQ(without_calls, 0);
}

TEST(JobState, EveryStateEndsOrDoesNotAndHasAName) {
  const std::set<std::string> ended = {"SUCCEEDED", "FAILED",    "CANCELLED",
                                       "TIMEOUT",   "PREEMPTED", "NO_PROGRESS"};
  for (int value = v1::JobState_MIN; value <= v1::JobState_MAX; ++value) {
    const auto state = static_cast<v1::JobState>(value);
    EXPECT_EQ(IsFinalJobState(state), ended.count(JobStateName(state)) == 1) << JobStateName(state);
  }
  EXPECT_EQ(JobStateName(static_cast<v1::JobState>(99)), "UNKNOWN(99)");
}

}  // namespace
}  // namespace hyperframes
