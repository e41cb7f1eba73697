// The real binary against a coordinator with canned answers: what people see, and exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/run_program.h"
#include "client/cpp/fake_coordinator.h"
#include "common/exit_code.h"
#include "common/units.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kHfctl[] = "client/cli/hfctl";
constexpr char kJobFile[] = "client/cli/testdata/job.json";

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class HfctlTest : public ::testing::Test {
 protected:
  ProgramResult Hfctl(const std::vector<std::string>& arguments) {
    return RunProgram(kHfctl, arguments, {{"HYPERFRAMES_COORDINATOR", coordinator_.address()}});
  }

  static v1::Job JobIn(v1::JobState state, int64_t version) {
    v1::Job job;
    job.set_id("job-1");
    job.mutable_spec()->set_name("train");
    job.mutable_spec()->set_ranks(2);
    job.mutable_spec()->add_command("python");
    job.set_state(state);
    job.set_reason("exit_code");
    job.set_message("rank 1 ended with exit code 3");
    job.set_version(version);
    return job;
  }

  static v1::ListNodesResponse TwoNodes() {
    v1::ListNodesResponse nodes;
    nodes.set_epoch(4);
    for (const std::string name : {"a", "b"}) {
      v1::NodeInfo* node = nodes.add_nodes();
      node->set_node(name);
      node->set_state(name == "a" ? v1::NODE_STATE_ALIVE : v1::NODE_STATE_SUSPECTED);
      node->set_agent_address("127.0.0.1:7463");
      node->set_heartbeat_age_s(0.25);
      node->set_host_lendable_bytes(4 * kGiB);
      node->set_host_lent_bytes(kGiB);
      if (name == "a") {
        node->mutable_network()->set_kind("infiniband");
        node->mutable_network()->set_bytes_per_second(50.0 * kGiB);
        for (const std::string other : {"n4", "n3", "n2", "b"}) {
          v1::NetworkMeasurement* measured = node->add_network_measured();
          measured->set_node(other);
          measured->set_bytes_per_second(other == "b" ? kGiB : 40.0 * kGiB);
          measured->set_age_s(3);
        }
      }
      v1::GpuInfo* gpu = node->add_gpus();
      gpu->set_uuid("SIM-" + name + "-0");
      gpu->set_total_bytes(kGiB);
      gpu->set_used_bytes(kGiB / 4);
      gpu->set_occupied_bytes(kGiB / 2);  // Also by others than workers.
      gpu->set_unhealthy(name == "b");
      gpu->set_unhealthy_reason(name == "b" ? "it fell off the bus" : "");
      gpu->set_lent_bytes(kGiB / 4);
      v1::WorkerReport* worker = node->add_workers();
      worker->set_worker_id("job-1-0-" + name);
      worker->set_state(v1::WORKER_STATE_RUNNING);
      worker->set_activation_bytes(50 * kMiB);
      worker->set_activation_peak_bytes(100 * kMiB);
      worker->set_steps(12);
    }
    return nodes;
  }

  static v1::FramePlan SomePlan() {
    v1::FramePlan plan;
    plan.set_id("0123456789abcdef");
    plan.set_epoch(3);
    plan.set_advice("worth it: A is 2.5 times P");
    v1::RankPlan* rank = plan.add_ranks();
    rank->set_keep_bytes(10 * kMiB);
    rank->set_peer_bytes(20 * kMiB);
    rank->set_host_bytes(30 * kMiB);
    rank->set_predicted_peak(40 * kMiB);
    rank->set_predicted_step_s(0.25);
    v1::LeaseNeed* lease = rank->add_leases();
    lease->set_device("SIM-a-1");
    lease->set_tier(v1::TIER_PEER);
    lease->set_bytes(20 * kMiB);
    lease->set_node("nodeb");
    lease->set_staging_bytes(5 * kMiB);
    v1::BlockDecision* block = rank->add_blocks();
    block->set_name("blocks.0");
    block->set_policy(v1::POLICY_RECOMPUTE);
    block->set_reason("recompute 1.2 ms is less than 3.4 ms of copies");
    block->set_confidence(0.9);
    block->add_storages()->set_tier(v1::TIER_HOST);
    rank->add_blocks()->set_name("loss");
    return plan;
  }

  FakeCoordinator coordinator_;
};

TEST_F(HfctlTest, NodesShowsStateAndLentBytes) {
  coordinator_.set_nodes(TwoNodes());
  const ProgramResult result = Hfctl({"nodes"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, StartsWith("NODE"));
  EXPECT_THAT(result.out, HasSubstr("SUSPECTED"));
  EXPECT_THAT(result.out, HasSubstr("256MiB"));
}

TEST_F(HfctlTest, NodesNamesTheNetworkWhatItPromisesAndTheSlowestWaysFirst) {
  coordinator_.set_nodes(TwoNodes());
  const ProgramResult result = Hfctl({"nodes"});
  EXPECT_THAT(result.out, HasSubstr("infiniband 50GiB/s"));
  EXPECT_THAT(result.out, HasSubstr("b 1GiB/s 3.0s ago, n2 40GiB/s 3.0s ago, n3"));
  EXPECT_THAT(result.out, HasSubstr(" and 1 more"));
  EXPECT_THAT(result.out, Not(HasSubstr("n4")));
}

TEST_F(HfctlTest, GpusOfOneNodeOrASentence) {
  coordinator_.set_nodes(TwoNodes());
  const ProgramResult one = Hfctl({"gpus", "b"});
  EXPECT_EQ(one.exit_code, kExitOk) << one.err;
  EXPECT_THAT(one.out, HasSubstr("SIM-b-0"));
  EXPECT_THAT(one.out, Not(HasSubstr("SIM-a-0")));
  EXPECT_THAT(one.out, HasSubstr("75%"));
  EXPECT_THAT(one.out, HasSubstr("UNHEALTHY: it fell off the bus"));
  const ProgramResult none = Hfctl({"gpus", "zz"});
  EXPECT_EQ(none.exit_code, kExitNotFound);
  EXPECT_THAT(none.err, HasSubstr("no node \"zz\""));
}

TEST_F(HfctlTest, AJobFileIsSubmittedAsItIsWritten) {
  const ProgramResult result = Hfctl({"submit", kJobFile, "-o", "json"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out, FileText("client/cli/testdata/submitted.golden.json"));
}

TEST_F(HfctlTest, FlagsMakeTheSameKindOfJob) {
  const ProgramResult result =
      Hfctl({"submit",       "--name",         "x",       "--ranks=2", "--placement",
             "spread",       "--env",          "K=V",     "--env",     "EMPTY=",
             "--lent-quota", "1GiB",           "--grace", "60s",       "--time-limit",
             "30m",          "--max-restarts", "3",       "--",        "python",
             "train.py",     "--ranks=9",      "--",      "-x"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "job-1 QUEUED: waits for 2 free GPUs\n");
  ASSERT_EQ(coordinator_.submitted().size(), 1u);
  const v1::JobSpec spec = coordinator_.submitted()[0].spec();
  EXPECT_EQ(spec.name(), "x");
  EXPECT_EQ(spec.ranks(), 2);
  EXPECT_EQ(spec.placement(), v1::JobSpec::PLACEMENT_SPREAD);
  EXPECT_EQ(spec.env().at("K"), "V");
  EXPECT_EQ(spec.env().at("EMPTY"), "");
  EXPECT_EQ(spec.lent_bytes_quota(), kGiB);
  EXPECT_EQ(spec.grace_s(), 60);
  EXPECT_EQ(spec.time_limit_s(), 1800);
  EXPECT_EQ(spec.max_restarts(), 3);
  EXPECT_THAT(spec.command(),
              ::testing::ElementsAre("python", "train.py", "--ranks=9", "--", "-x"));
  EXPECT_FALSE(spec.working_directory().empty());
  EXPECT_EQ(coordinator_.submitted()[0].idempotency_key().size(), 32u);
}

TEST_F(HfctlTest, WrongJobsAreRefusedBeforeTheyAreSent) {
  const std::string file = std::string(std::getenv("TEST_TMPDIR")) + "/job.json";
  std::ofstream(file) << R"({"name": "x", "gpus": 2})";
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"submit", file}, "gpus"},
      {{"submit"}, "nothing to run"},
      {{"submit", "python", "train.py"}, "train.py"},
      {{"submit", "--ranks", "0", "--", "true"}, "ranks"},
      {{"submit", "--ranks", "many", "--", "true"}, "many"},
      {{"submit", "--placement", "near", "--", "true"}, "near"},
      {{"submit", "--env", "=x", "--", "true"}, "=x"},
      {{"submit", "--env"}, "--env needs a value"},
      {{"submit", "--name", "x", kJobFile}, "contradicts"},
      {{"submit", "--rank", "2", "--", "true"}, "did you mean --ranks"},
  };
  for (const auto& [arguments, words] : wrong) {
    const ProgramResult result = Hfctl(arguments);
    EXPECT_EQ(result.exit_code, kExitUsage) << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(Hfctl({"submit", "/no/such/job.json"}).exit_code, kExitNotFound);
  EXPECT_EQ(coordinator_.calls("SubmitJob"), 0);
}

TEST_F(HfctlTest, JobsAndDescribeShowReasonAndWorkers) {
  v1::Job job = JobIn(v1::JOB_STATE_FAILED, 4);
  v1::JobWorker* worker = job.add_workers();
  worker->set_rank(1);
  worker->set_node("b");
  worker->mutable_report()->set_state(v1::WORKER_STATE_EXITED);
  worker->mutable_report()->set_exit_code(3);
  job.mutable_spec()->set_max_restarts(3);
  job.mutable_spec()->set_time_limit_s(1800);
  job.set_restarts(2);
  job.set_plan_id("0123456789abcdef");
  coordinator_.AddJob(job);
  coordinator_.set_plan("job-1", SomePlan());
  const ProgramResult jobs = Hfctl({"jobs"});
  EXPECT_EQ(jobs.exit_code, kExitOk) << jobs.err;
  EXPECT_THAT(jobs.out, HasSubstr("NODES  RESTARTS"));
  EXPECT_THAT(jobs.out, HasSubstr("rank 1 ended with exit code 3"));
  const ProgramResult described = Hfctl({"job", "describe", "job-1"});
  EXPECT_EQ(described.exit_code, kExitOk) << described.err;
  EXPECT_THAT(described.out, HasSubstr("FAILED"));
  EXPECT_THAT(described.out, HasSubstr("exit code 3"));
  EXPECT_THAT(described.out, HasSubstr("restarts:   2 of at most 3\n"));
  EXPECT_THAT(described.out, HasSubstr("time limit: 30m\n"));
  EXPECT_THAT(described.out, HasSubstr("borrows:    20MiB on node nodeb\n"));
}

TEST_F(HfctlTest, LogsArePrintedByteForByte) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_SUCCEEDED, 4));
  const std::string log = "step 1 loss 5.0\nstep 2 loss 4.0\r\nno newline at the end \x1b[0m";
  coordinator_.set_log("job-1", 1, log);
  for (const std::string flag : {"-f", "--follow", "--rank=1"}) {
    const ProgramResult result = Hfctl({"job", "logs", "job-1", "--rank", "1", flag});
    EXPECT_EQ(result.exit_code, kExitOk) << result.err;
    EXPECT_EQ(result.out, log);
  }
}

TEST_F(HfctlTest, LogsOfAnEarlierAttemptAreAskedForByNumberOrAsThePrevious) {
  v1::Job job = JobIn(v1::JOB_STATE_FAILED, 1);
  job.set_attempt(5);
  for (const int attempt : {3, 4}) {
    v1::JobAttempt* earlier = job.add_attempts();
    earlier->set_attempt(attempt);
    earlier->set_reason("signal");
    earlier->set_message("rank 0 on node a was ended by signal 9");
    earlier->set_steps(120);
  }
  coordinator_.AddJob(job);
  coordinator_.set_log("job-1", 0, "hello\n");
  EXPECT_EQ(Hfctl({"job", "logs", "job-1", "--previous"}).out, "hello\n");
  EXPECT_EQ(coordinator_.last_log_attempt(), 4);
  EXPECT_EQ(Hfctl({"job", "logs", "job-1", "--attempt", "3"}).out, "hello\n");
  EXPECT_EQ(coordinator_.last_log_attempt(), 3);
  EXPECT_EQ(Hfctl({"job", "logs", "job-1", "--attempt", "3", "--previous"}).exit_code, kExitUsage);
  const std::string shown = Hfctl({"job", "describe", "job-1"}).out;
  EXPECT_THAT(shown, HasSubstr("earlier attempts"));
  EXPECT_THAT(shown, HasSubstr("rank 0 on node a was ended by signal 9"));
}

TEST_F(HfctlTest, ThereIsNoPreviousLogOfAJobThatWasNotRestarted) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 1));
  const ProgramResult result = Hfctl({"job", "logs", "job-1", "--previous"});
  EXPECT_EQ(result.exit_code, kExitNotFound) << result.err;
  EXPECT_THAT(result.err, HasSubstr("no earlier attempt"));
}

// `hfctl job logs -f | head -1`: nothing more is printed, and it ends all the same.
TEST_F(HfctlTest, AFollowedLogEndsWhenItsReaderHasGone) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 1));
  coordinator_.set_log("job-1", 0, "hello\n");
  const auto began = std::chrono::steady_clock::now();
  const ProgramResult result =
      RunProgram("/bin/sh", {"-c", std::string(kHfctl) + " job logs job-1 -f | head -n 1"},
                 {{"HYPERFRAMES_COORDINATOR", coordinator_.address()}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "hello\n");
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

TEST_F(HfctlTest, PreemptSaysWhereTheJobStands) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 1));
  EXPECT_EQ(Hfctl({"job", "preempt", "job-1"}).out, "job-1 STOPPING: preempted\n");
  EXPECT_EQ(Hfctl({"job", "preempt", "job-1", "--signal"}).out,
            "job-1 STOPPING: preempted by signal\n");
  EXPECT_EQ(Hfctl({"job", "cancel", "job-1", "--signal"}).exit_code, kExitOk);
  EXPECT_TRUE(coordinator_.last_cancel().signal());
}

TEST_F(HfctlTest, WaitTellsHowTheJobEndedByItsExitCode) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 1));
  EXPECT_EQ(Hfctl({"job", "wait", "job-1", "--timeout", "100ms"}).exit_code, kExitTimedOut);
  coordinator_.AddJob(JobIn(v1::JOB_STATE_FAILED, 2));
  const ProgramResult failed = Hfctl({"job", "wait", "job-1"});
  EXPECT_EQ(failed.exit_code, kExitFailed) << failed.err;
  EXPECT_THAT(failed.out, HasSubstr("FAILED: rank 1 ended"));
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 3));
  coordinator_.AddJob(JobIn(v1::JOB_STATE_SUCCEEDED, 4));
}

TEST_F(HfctlTest, WaitForSuccessIsZero) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 1));
  coordinator_.AddJob(JobIn(v1::JOB_STATE_SUCCEEDED, 2));
  EXPECT_EQ(Hfctl({"job", "wait", "job-1", "--timeout=20s"}).exit_code, kExitOk);
}

TEST_F(HfctlTest, AWaitThatTakesLongSaysOnStderrWhatTheJobDoes) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 1));
  const ProgramResult result = Hfctl({"job", "wait", "job-1", "--timeout", "3s"});
  EXPECT_EQ(result.exit_code, kExitTimedOut);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, StartsWith("hfctl: waiting for job-1 (RUNNING"));
}

TEST_F(HfctlTest, SubmitWaitsForTheEndWhenAsked) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_FAILED, 2));  // What job-1 has become meanwhile.
  const ProgramResult result = Hfctl({"submit", "--wait", "--", "true"});
  EXPECT_EQ(result.exit_code, kExitFailed) << result.err;
  EXPECT_THAT(result.out, StartsWith("job-1 QUEUED: waits for 2 free GPUs\njob-1 FAILED: rank 1"));
  EXPECT_EQ(result.err, "");
}

TEST_F(HfctlTest, CancelEndsTheJob) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 1));
  const ProgramResult result = Hfctl({"job", "cancel", "job-1"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("job-1 CANCELLED"));
}

TEST_F(HfctlTest, PlanShowsBytesPerTierAndLeases) {
  coordinator_.set_plan("job-1", SomePlan());
  const ProgramResult result = Hfctl({"plan", "job-1"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  for (const std::string words : {"epoch 3", "10MiB", "20MiB", "30MiB", "40MiB", "250.00ms",
                                  "SIM-a-1", "nodeb", "5MiB", "worth it: A is 2.5 times P"}) {
    EXPECT_THAT(result.out, HasSubstr(words));
  }
}

TEST_F(HfctlTest, ExplainGivesTheReasonOfEachBlock) {
  coordinator_.set_plan("job-1", SomePlan());
  const ProgramResult all = Hfctl({"explain", "job-1"});
  EXPECT_THAT(all.out, HasSubstr("recompute 1.2 ms is less than 3.4 ms of copies"));
  EXPECT_THAT(all.out, HasSubstr("loss"));
  const ProgramResult one = Hfctl({"explain", "job-1", "blocks.0"});
  EXPECT_EQ(one.exit_code, kExitOk) << one.err;
  EXPECT_THAT(one.out, HasSubstr("1 host"));
  EXPECT_THAT(one.out, Not(HasSubstr("loss")));
  const ProgramResult none = Hfctl({"explain", "job-1", "block.0"});
  EXPECT_EQ(none.exit_code, kExitNotFound);
  EXPECT_THAT(none.err, HasSubstr("did you mean blocks.0?"));
}

TEST_F(HfctlTest, TopPrintsOneFrameWithBars) {
  coordinator_.set_nodes(TwoNodes());
  coordinator_.AddJob(JobIn(v1::JOB_STATE_RUNNING, 1));
  const ProgramResult result = Hfctl({"top", "--once"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("nodes: 1 alive, 1 suspected  jobs: 1 running"));
  EXPECT_THAT(result.out, HasSubstr("##"));
  EXPECT_THAT(result.out, HasSubstr("activations 50MiB  peak 100MiB  steps 12"));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
}

TEST_F(HfctlTest, AJobWithoutANameIsCalledAfterItsProgram) {
  EXPECT_EQ(Hfctl({"submit", "--", "/opt/my tools/train@home.py", "-x"}).exit_code, kExitOk);
  EXPECT_EQ(coordinator_.submitted()[0].spec().name(), "train-home.py");
}

TEST_F(HfctlTest, AnEmptyLogSaysWhatTheJobDoesInstead) {
  coordinator_.AddJob(JobIn(v1::JOB_STATE_QUEUED, 1));
  coordinator_.set_log("job-1", 0, "");
  const ProgramResult result = Hfctl({"job", "logs", "job-1"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("rank 0 has printed nothing; job-1 QUEUED"));
}

TEST_F(HfctlTest, AnEmptyClusterSaysWhatToStart) {
  for (const std::string command : {"nodes", "gpus"}) {
    EXPECT_THAT(Hfctl({command}).out, HasSubstr("hfagent --coordinator"));
  }
  EXPECT_THAT(Hfctl({"jobs"}).out, HasSubstr("hfctl submit"));
}

TEST_F(HfctlTest, AFileAndACommandOrADirectoryAreNoJob) {
  EXPECT_THAT(Hfctl({"submit", kJobFile, "--", "true"}).err, HasSubstr("give one of them"));
  EXPECT_THAT(Hfctl({"submit", "/tmp"}).err, HasSubstr("/tmp is a directory"));
  EXPECT_THAT(Hfctl({"submit", "train.py"}).err, HasSubstr("hfctl submit -- train.py"));
}

TEST_F(HfctlTest, AnAbsentCoordinatorIsThreeWithTheRemedy) {
  std::string address;
  {
    FakeCoordinator gone;
    address = gone.address();
  }
  const ProgramResult result = Hfctl({"--coordinator", address, "nodes"});
  EXPECT_EQ(result.exit_code, kExitUnreachable);
  EXPECT_THAT(result.err, HasSubstr(address));
  EXPECT_THAT(result.err, HasSubstr("is hfcoordinator running there?"));
}

TEST_F(HfctlTest, RefusalsKeepTheirSentenceAndGetTheirCode) {
  const std::vector<std::pair<grpc::StatusCode, int>> codes = {
      {grpc::StatusCode::NOT_FOUND, kExitNotFound},
      {grpc::StatusCode::RESOURCE_EXHAUSTED, kExitRefused},
      {grpc::StatusCode::FAILED_PRECONDITION, kExitRefused},
      {grpc::StatusCode::INVALID_ARGUMENT, kExitUsage},
      {grpc::StatusCode::ABORTED, kExitTryAgain},
      {grpc::StatusCode::INTERNAL, kExitFailed},
  };
  for (const auto& [code, exit_code] : codes) {
    coordinator_.Script("SubmitJob", grpc::Status(code, "because of this"));
    const ProgramResult result = Hfctl({"submit", "--", "true"});
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_EQ(result.err, "hfctl: because of this\n");
  }
}

TEST_F(HfctlTest, WrongWordsGetOneSentence) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"node"}, "did you mean `hfctl nodes`?"},
      {{"logs", "job-1"}, "hfctl"},
      {{"job"}, "describe, logs, wait, cancel, preempt"},
      {{"job", "log", "job-1"}, "did you mean `hfctl job logs`?"},
      {{"job", "describe"}, "usage: hfctl job describe ID"},
      {{"nodes", "extra"}, "\"extra\" is one argument too many"},
      {{"nodes", "--outptu", "json"}, "did you mean --output?"},
      {{"nodes", "-o", "yaml"}, "yaml"},
      {{"nodes", "--timeout", "5"}, "5"},
      {{"nodes", "--coordinator", "nowhere"}, "nowhere"},
  };
  for (const auto& [arguments, words] : wrong) {
    const ProgramResult result = Hfctl(arguments);
    EXPECT_EQ(result.exit_code, kExitUsage) << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST_F(HfctlTest, HelpIsThereForEveryCommand) {
  EXPECT_EQ(Hfctl({}).exit_code, kExitUsage);
  EXPECT_EQ(Hfctl({"--help"}).exit_code, kExitOk);
  for (const std::string name :
       {"nodes", "submit", "top", "plan", "explain", "jobs", "gpus", "checkpoints"}) {
    const ProgramResult result = Hfctl({"help", name});
    EXPECT_EQ(result.exit_code, kExitOk) << result.err;
    EXPECT_THAT(result.out, HasSubstr("--coordinator"));
    EXPECT_EQ(Hfctl({name, "--help"}).out, result.out);
  }
  EXPECT_THAT(Hfctl({"help", "job", "logs"}).out, HasSubstr("--rank"));
}

TEST_F(HfctlTest, AWorkersEnvironmentDoesNotLeakIntoFlags) {
  coordinator_.set_nodes(TwoNodes());
  const ProgramResult result = RunProgram(kHfctl, {"submit", "--", "true"},
                                          {{"HYPERFRAMES_COORDINATOR", coordinator_.address()},
                                           {"HYPERFRAMES_RANKS", "7"},
                                           {"HYPERFRAMES_NAME", "leak"}});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(coordinator_.submitted()[0].spec().ranks(), 1);
  EXPECT_EQ(coordinator_.submitted()[0].spec().name(), "true");
}

}  // namespace
}  // namespace hyperframes
