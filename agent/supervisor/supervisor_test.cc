#include "agent/supervisor/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

bool Eventually(const std::function<bool()>& holds, absl::Duration timeout = absl::Seconds(20)) {
  const absl::Time end = MonotonicClock()->Now() + timeout;
  while (!holds()) {
    if (MonotonicClock()->Now() >= end) return false;
    poll(nullptr, 0, /*timeout=*/2);
  }
  return true;
}

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() {
    char name[] = "/tmp/hfsupervisor.XXXXXX";
    directory_ = mkdtemp(name);
    supervisor_ = Create();
  }
  ~SupervisorTest() override {
    if (supervisor_ != nullptr) {
      for (const WorkerInfo& info : supervisor_->Workers()) {
        supervisor_->Stop(info.spec.worker_id, absl::ZeroDuration()).IgnoreError();
        WaitForEnd(info.spec.worker_id);
      }
    }
    supervisor_.reset();
    if (system(("rm -rf " + directory_).c_str()) != 0) ADD_FAILURE() << directory_;
  }

  std::unique_ptr<Supervisor> Create() {
    SupervisorOptions options;
    options.run_directory = directory_ + "/run";
    options.shim_path = "agent/hfshim";
    options.poll_interval = absl::Milliseconds(5);
    auto created = Supervisor::Create(options, [this](const WorkerInfo& info) {
      MutexLock lock(&mutex_);
      ended_.insert(info.spec.worker_id);
    });
    EXPECT_TRUE(created.ok()) << created.status();
    return std::move(*created);
  }
  WorkerSpec Script(const std::string& id, const std::string& script) {
    WorkerSpec spec;
    spec.worker_id = id;
    spec.job_id = "job";
    spec.command = {"bash", "-c", script};
    spec.environment = {{"PATH", "/usr/bin:/bin"}, {"DIR", directory_}};
    return spec;
  }
  WorkerInfo Get(const std::string& id) {
    for (const WorkerInfo& info : supervisor_->Workers()) {
      if (info.spec.worker_id == id) return info;
    }
    return {};
  }
  WorkerInfo WaitForEnd(const std::string& id) {
    EXPECT_TRUE(Eventually([&] { return Get(id).status.state == WorkerState::kExited; }));
    return Get(id);
  }
  std::string Log(const std::string& id) {
    const auto piece = supervisor_->ReadLog(id, 0, kMiB);
    return piece.ok() ? piece->data : std::string(piece.status().message());
  }
  // Waits for scripts that write their pids to $DIR/<name>.
  std::vector<ProcessIdentity> PidsIn(const std::string& name, size_t count) {
    std::vector<ProcessIdentity> found;
    EXPECT_TRUE(Eventually([&] {
      found.clear();
      std::ifstream file(directory_ + "/" + name);
      for (pid_t pid; file >> pid;) found.push_back(IdentifyProcess(pid));
      return found.size() >= count;
    }));
    return found;
  }

  std::string directory_;
  Mutex mutex_;
  std::set<std::string> ended_;
  std::unique_ptr<Supervisor> supervisor_;
};

TEST_F(SupervisorTest, RunsAWorkerWithExactlyItsEnvironmentAndTellsItsExitCode) {
  WorkerSpec spec = Script("job-0-0", "env | sort; pwd; echo error >&2; exit 7");
  spec.working_directory = "/usr";
  ASSERT_TRUE(supervisor_->Start(spec).ok());
  const WorkerInfo info = WaitForEnd("job-0-0");
  EXPECT_EQ(info.status.exit_code, 7);
  EXPECT_EQ(info.status.term_signal, 0);
  EXPECT_FALSE(info.adopted);
  EXPECT_THAT(Log("job-0-0"), HasSubstr("DIR=" + directory_ + "\nPATH=/usr/bin:/bin\n"));
  EXPECT_THAT(Log("job-0-0"), HasSubstr("/usr\nerror\n"));
  EXPECT_TRUE(supervisor_->ReadLog("job-0-0", 0, kMiB)->complete);
  EXPECT_TRUE(Eventually([&] {
    MutexLock lock(&mutex_);
    return ended_.count("job-0-0") == 1;
  }));
}

TEST_F(SupervisorTest, StartsAWorkerOnceHoweverOftenItIsAsked) {
  const WorkerSpec spec = Script("job-0-0", "echo started");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(supervisor_->Start(spec).ok());
  WaitForEnd("job-0-0");
  ASSERT_TRUE(supervisor_->Start(spec).ok());
  EXPECT_EQ(Log("job-0-0"), "started\n");
}

TEST_F(SupervisorTest, SaysWhyAWorkerCouldNotStart) {
  WorkerSpec missing = Script("job-0-0", "");
  missing.command = {"no-such-program"};
  WorkerSpec elsewhere = Script("job-0-1", "true");
  elsewhere.working_directory = "/no/such/place";
  ASSERT_TRUE(supervisor_->Start(missing).ok());
  ASSERT_TRUE(supervisor_->Start(elsewhere).ok());
  const WorkerInfo first = WaitForEnd("job-0-0");
  EXPECT_EQ(first.status.exit_code, 127);
  EXPECT_THAT(first.status.message, HasSubstr("command 'no-such-program': No such file"));
  EXPECT_THAT(WaitForEnd("job-0-1").status.message, HasSubstr("'/no/such/place'"));
  EXPECT_EQ(supervisor_->Start(Script("../x", "true")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(supervisor_->Stop("unknown", absl::ZeroDuration()).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(SupervisorTest, StopsTheLogAtItsLimitAndSaysSo) {
  WorkerSpec spec = Script("job-0-0", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo end");
  spec.log_limit = 100000;
  ASSERT_TRUE(supervisor_->Start(spec).ok());
  EXPECT_EQ(WaitForEnd("job-0-0").status.exit_code, 0) << "a full log never stops a worker";
  const std::string log = Log("job-0-0");
  EXPECT_EQ(log.find_first_not_of('x'), 100000u);
  EXPECT_THAT(log, HasSubstr("is reached: what follows is not kept"));
  EXPECT_EQ(log.find("end"), std::string::npos);
}

TEST_F(SupervisorTest, EndsEveryDescendantWithinTwoSecondsAndNoForeignProcess) {
  // One that ignores SIGTERM, one in a session of its own whose parent has left, one plain child.
  const std::string script =
      "trap '' TERM; echo $$ >> $DIR/pids;"
      "(sleep 600 & echo $! >> $DIR/pids; wait) &"
      "setsid bash -c '(trap \"\" TERM; echo $BASHPID >> $DIR/pids; while :; do sleep 1; done) &';"
      "while :; do sleep 0.1; done";
  const pid_t foreign = fork();
  if (foreign == 0) {
    execlp("sleep", "sleep", "600", nullptr);
    _exit(1);
  }
  ASSERT_TRUE(supervisor_->Start(Script("job-0-0", script)).ok());
  const std::vector<ProcessIdentity> tree = PidsIn("pids", 3);
  ASSERT_TRUE(supervisor_->Stop("job-0-0", absl::Milliseconds(300)).ok());
  EXPECT_TRUE(Eventually(
      [&] {
        return std::none_of(tree.begin(), tree.end(), &ProcessRuns) &&
               Get("job-0-0").status.state == WorkerState::kExited;
      },
      absl::Seconds(2)));
  EXPECT_EQ(Get("job-0-0").status.term_signal, SIGKILL);
  EXPECT_EQ(kill(foreign, 0), 0) << "a process that is not ours is never touched";
  EXPECT_EQ(waitpid(foreign, nullptr, WNOHANG), 0);
  kill(foreign, SIGKILL);
  waitpid(foreign, nullptr, 0);
}

TEST_F(SupervisorTest, StopsAWorkerThatWasStartedOrAdoptedOnlyThisMoment) {
  ASSERT_TRUE(supervisor_->Start(Script("job-0-0", "sleep 600")).ok());
  ASSERT_TRUE(supervisor_->Stop("job-0-0", absl::ZeroDuration()).ok());
  EXPECT_NE(WaitForEnd("job-0-0").status.term_signal, 0);
  ASSERT_TRUE(supervisor_->Start(Script("job-0-1", "sleep 600")).ok());
  supervisor_ = Create();
  ASSERT_TRUE(supervisor_->Stop("job-0-1", absl::ZeroDuration()).ok());
  EXPECT_NE(WaitForEnd("job-0-1").status.term_signal, 0);
}

TEST_F(SupervisorTest, EndsWhatAWorkerLeavesBehind) {
  ASSERT_TRUE(
      supervisor_->Start(Script("job-0-0", "sleep 600 & echo $! > $DIR/pids; exit 3")).ok());
  const std::vector<ProcessIdentity> left = PidsIn("pids", 1);
  EXPECT_EQ(WaitForEnd("job-0-0").status.exit_code, 3);
  EXPECT_FALSE(ProcessRuns(left[0]));
}

TEST_F(SupervisorTest, AdoptsWorkersOfAKilledAgentWithWholeLogsAndExitCodes) {
  supervisor_.reset();
  int started[2];
  ASSERT_EQ(pipe(started), 0);
  const pid_t agent = fork();
  if (agent == 0) {
    auto doomed = Create();
    for (int rank = 0; rank < 4; ++rank) {
      // Prints on from a child of its own, until told to end.
      const std::string id = "job-0-" + std::to_string(rank);
      WorkerSpec spec = Script(
          id,
          "(i=0; until [ -e $DIR/go ]; do i=$((i+1)); echo line $i; sleep 0.01; done) & wait;"
          "echo last; exit " +
              std::to_string(10 + rank));
      if (!doomed->Start(spec).ok()) _exit(1);
      while (doomed->ReadLog(id, 0, 0)->data.empty()) poll(nullptr, 0, 2);
    }
    if (write(started[1], "s", 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte = 0;
  close(started[1]);
  ASSERT_EQ(read(started[0], &byte, 1), 1);
  close(started[0]);
  kill(agent, SIGKILL);
  waitpid(agent, nullptr, 0);

  supervisor_ = Create();
  for (int rank = 0; rank < 4; ++rank) {
    const std::string id = "job-0-" + std::to_string(rank);
    EXPECT_TRUE(Eventually([&] { return Get(id).status.state == WorkerState::kRunning; }));
    EXPECT_TRUE(Get(id).adopted);
  }
  EXPECT_EQ(supervisor_->Running("job"), 4);
  std::ofstream(directory_ + "/go") << "go";
  for (int rank = 0; rank < 4; ++rank) {
    const std::string id = "job-0-" + std::to_string(rank);
    EXPECT_EQ(WaitForEnd(id).status.exit_code, 10 + rank);
    std::istringstream log(Log(id));
    std::string line;
    int number = 0;
    while (std::getline(log, line) && line != "last") {
      EXPECT_EQ(line, "line " + std::to_string(++number)) << "no line is lost or doubled";
    }
    EXPECT_EQ(line, "last");
    EXPECT_GT(number, 0);
  }
}

TEST_F(SupervisorTest, TellsAnEndThatHappenedWhileNoAgentWasThereAndOnlyUntilAcknowledged) {
  ASSERT_TRUE(
      supervisor_->Start(Script("job-0-0", "until [ -e $DIR/go ]; do sleep 0.01; done")).ok());
  ASSERT_TRUE(Eventually([&] { return Get("job-0-0").status.state == WorkerState::kRunning; }));
  const ProcessIdentity shim = Get("job-0-0").status.shim;
  supervisor_.reset();
  std::ofstream(directory_ + "/go") << "go";
  ASSERT_TRUE(Eventually([&] { return !ProcessRuns(shim); }));
  supervisor_ = Create();
  EXPECT_EQ(WaitForEnd("job-0-0").status.exit_code, 0);
  supervisor_->Acknowledge({"job-0-0"});
  EXPECT_TRUE(supervisor_->Workers().empty());
  supervisor_ = Create();
  EXPECT_TRUE(supervisor_->Workers().empty());
  EXPECT_TRUE(supervisor_->ReadLog("job-0-0", 0, 0)->complete) << "its log is still there";
}

TEST_F(SupervisorTest, NoticesAShimThatWasKilledFromOutsideAndEndsItsWorker) {
  ASSERT_TRUE(
      supervisor_->Start(Script("job-0-0", "echo $$ >> $DIR/pids; while :; do sleep 1; done"))
          .ok());
  const std::vector<ProcessIdentity> worker = PidsIn("pids", 1);
  ASSERT_TRUE(Eventually([&] { return Get("job-0-0").status.shim.pid != 0; }));
  kill(Get("job-0-0").status.shim.pid, SIGKILL);
  EXPECT_THAT(WaitForEnd("job-0-0").status.message, HasSubstr("shim was ended from outside"));
  EXPECT_TRUE(Eventually([&] { return !ProcessRuns(worker[0]); }));
}

TEST(SupervisorCreate, NamesAMissingShim) {
  SupervisorOptions options;
  options.run_directory = "/tmp";
  options.shim_path = "/no/hfshim";
  const auto created = Supervisor::Create(options, [](const WorkerInfo&) {});
  EXPECT_EQ(created.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(created.status().message()), HasSubstr("/no/hfshim"));
}

}  // namespace
}  // namespace hyperframes
