#include "agent/supervisor/supervisor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "agent/supervisor/record_file.h"
#include "common/eventually.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

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
    options.most_ended_kept = most_ended_kept_;
    options.ended_kept_for = ended_kept_for_;
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

  std::string WorkerDirectory(const std::string& id) { return directory_ + "/run/workers/" + id; }
  // What an agent has written when it is killed before it starts the shim.
  void RecordOnly(const WorkerSpec& spec) {
    ASSERT_TRUE(MakeDirectories(WorkerDirectory(spec.worker_id)).ok());
    ASSERT_TRUE(WriteSpec(WorkerDirectory(spec.worker_id), spec).ok());
  }
  bool Exists(const std::string& id) { return access(WorkerDirectory(id).c_str(), F_OK) == 0; }

  std::string directory_;
  size_t most_ended_kept_ = 256;
  absl::Duration ended_kept_for_ = absl::Hours(1'000'000);
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

TEST_F(SupervisorTest, LeavesNoZombieOfAWorkerThatHasEnded) {
  std::set<pid_t> shims;
  for (int rank = 0; rank < 20; ++rank) {
    const std::string id = "job-0-" + std::to_string(rank);
    ASSERT_TRUE(supervisor_->Start(Script(id, "true")).ok());
    shims.insert(WaitForEnd(id).status.shim.pid);
  }
  for (const pid_t shim : shims) {
    EXPECT_TRUE(Eventually([&] { return kill(shim, 0) != 0; })) << shim << " is not reaped";
  }
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

TEST_F(SupervisorTest, StartsAWorkerThatAKilledAgentHadRecordedAndNotYetStarted) {
  supervisor_.reset();
  RecordOnly(Script("job-0-0", "echo ran; exit 3"));
  // The same with the lock file of a shim that was killed before its first status.
  RecordOnly(Script("job-0-1", "echo ran"));
  std::ofstream(WorkerDirectory("job-0-1") + "/" + kLockFile) << "";
  supervisor_ = Create();
  EXPECT_EQ(WaitForEnd("job-0-0").status.exit_code, 3);
  EXPECT_EQ(Get("job-0-0").status.term_signal, 0);
  EXPECT_EQ(Log("job-0-0"), "ran\n");
  WaitForEnd("job-0-1");
  EXPECT_EQ(Log("job-0-1"), "ran\n");
}

TEST_F(SupervisorTest, UndoesAWorkerThatWasNotEvenRecordedOrWasHalfPruned) {
  supervisor_.reset();
  ASSERT_TRUE(MakeDirectories(WorkerDirectory("empty")).ok());
  ASSERT_TRUE(MakeDirectories(WorkerDirectory("half-written")).ok());
  std::ofstream(WorkerDirectory("half-written") + "/.spec.json.tmp") << "{\"worker";
  ASSERT_TRUE(MakeDirectories(WorkerDirectory("half-pruned")).ok());
  std::ofstream(WorkerDirectory("half-pruned") + "/" + kLogFile) << "words";
  std::ofstream(WorkerDirectory("half-pruned") + "/" + kToldFile) << "";
  supervisor_ = Create();
  EXPECT_TRUE(supervisor_->Workers().empty());
  for (const char* id : {"empty", "half-written", "half-pruned"}) EXPECT_FALSE(Exists(id)) << id;
}

TEST_F(SupervisorTest, NeverRunsAgainWhatHasAStatusOrWasTold) {
  supervisor_.reset();
  WorkerStatus begun;
  begun.shim = IdentifyProcess(getpid());
  begun.shim.boot_id = "another boot";
  for (const char* id : {"rebooted", "spoilt", "told"}) RecordOnly(Script(id, "touch $DIR/ran"));
  ASSERT_TRUE(WriteStatus(WorkerDirectory("rebooted"), begun).ok());
  std::ofstream(WorkerDirectory("spoilt") + "/" + kStatusFile) << "{";
  std::ofstream(WorkerDirectory("told") + "/" + kToldFile) << "";
  supervisor_ = Create();
  const WorkerInfo rebooted = WaitForEnd("rebooted");
  EXPECT_EQ(rebooted.status.term_signal, 0) << "nobody sent it a signal";
  EXPECT_EQ(rebooted.status.exit_code, -1);
  EXPECT_THAT(rebooted.status.message, HasSubstr("the node restarted"));
  const WorkerInfo spoilt = WaitForEnd("spoilt");
  EXPECT_EQ(spoilt.status.term_signal, 0);
  EXPECT_EQ(spoilt.status.exit_code, -1);
  EXPECT_NE(access((directory_ + "/ran").c_str(), F_OK), 0);
}

TEST_F(SupervisorTest, RunsEachWorkerOnceWhereverTheKillOfItsAgentFalls) {
  supervisor_.reset();
  constexpr int kKills = 40;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    const std::string id = "job-0-" + std::to_string(kill_number);
    const WorkerSpec spec = Script(id, "echo ran >> $DIR/" + id);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t agent = fork();
    if (agent == 0) {
      auto doomed = Create();
      if (write(ready[1], "r", 1) != 1) _exit(1);
      doomed->Start(spec).IgnoreError();
      while (true) pause();
    }
    close(ready[1]);
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    // From before the record to after the end: a start takes some milliseconds.
    const timespec wait = {0, kill_number * 200'000L};
    nanosleep(&wait, nullptr);
    kill(agent, SIGKILL);
    waitpid(agent, nullptr, 0);
    supervisor_ = Create();
    ASSERT_TRUE(supervisor_->Start(spec).ok()) << "a coordinator without an answer asks again";
    const WorkerInfo info = WaitForEnd(id);
    EXPECT_EQ(info.status.exit_code, 0) << kill_number << ": " << info.status.message;
    EXPECT_EQ(info.status.term_signal, 0) << kill_number << ": " << info.status.message;
    std::ifstream file(directory_ + "/" + id);
    const std::string ran((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(ran, "ran\n") << kill_number;
    supervisor_->Acknowledge({id});
    supervisor_.reset();
  }
}

TEST_F(SupervisorTest, KeepsTheNewestEndsThatNobodyNeedsAndEveryOtherOne) {
  most_ended_kept_ = 2;
  supervisor_ = Create();
  for (int rank = 0; rank < 6; ++rank) {
    const std::string id = "job-0-" + std::to_string(rank);
    WorkerSpec spec = Script(id, "true");
    spec.job_id = rank == 0 ? "goes on" : "over";
    ASSERT_TRUE(supervisor_->Start(spec).ok());
    WaitForEnd(id);
    // Seconds apart, the first the oldest.
    const timespec times[2] = {{1'700'000'000 + rank, 0}, {1'700'000'000 + rank, 0}};
    utimensat(AT_FDCWD, (WorkerDirectory(id) + "/" + kStatusFile).c_str(), times, 0);
  }
  supervisor_->Acknowledge({"job-0-0", "job-0-2", "job-0-3", "job-0-4", "job-0-5"});
  supervisor_.reset();
  supervisor_ = Create();
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_TRUE(Exists("job-0-" + std::to_string(rank))) << "nobody said what is still wanted";
  }
  WaitForEnd("job-0-1");
  supervisor_->KeepJobs({"goes on"});
  EXPECT_TRUE(Exists("job-0-0")) << "its job goes on";
  EXPECT_TRUE(Exists("job-0-1")) << "its end was not acknowledged";
  EXPECT_FALSE(Exists("job-0-2"));
  EXPECT_FALSE(Exists("job-0-3"));
  EXPECT_TRUE(Exists("job-0-4"));
  EXPECT_TRUE(Exists("job-0-5"));
  ended_kept_for_ = absl::Hours(1);
  supervisor_.reset();
  supervisor_ = Create();
  WaitForEnd("job-0-1");
  supervisor_->KeepJobs({});
  EXPECT_FALSE(Exists("job-0-0"));
  EXPECT_TRUE(Exists("job-0-1"));
  EXPECT_FALSE(Exists("job-0-5")) << "too old, however few there are";
}

TEST_F(SupervisorTest, OfAJobThatIsRestartedAgainAndAgainTheNewestLogsAreKept) {
  supervisor_ = Create();
  std::vector<std::string> ids;
  for (int attempt = 1; attempt <= 10; ++attempt) {
    const std::string id = "job-" + std::to_string(attempt) + "-0";
    WorkerSpec spec = Script(id, "true");
    spec.job_id = "job";
    ASSERT_TRUE(supervisor_->Start(spec).ok());
    WaitForEnd(id);
    const timespec times[2] = {{1'700'000'000 + attempt, 0}, {1'700'000'000 + attempt, 0}};
    utimensat(AT_FDCWD, (WorkerDirectory(id) + "/" + kStatusFile).c_str(), times, 0);
    ids.push_back(id);
  }
  supervisor_->Acknowledge(ids);
  supervisor_.reset();
  supervisor_ = Create();
  supervisor_->KeepJobs({"job"});
  for (int attempt = 1; attempt <= 10; ++attempt) {
    EXPECT_EQ(access(WorkerDirectory(ids[attempt - 1]).c_str(), F_OK) == 0, attempt > 2) << attempt;
  }
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
