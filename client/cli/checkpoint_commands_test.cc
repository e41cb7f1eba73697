// `hfctl checkpoints`, the real binary against a coordinator with canned answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

std::string FileText(const std::string& path) {
  std::ifstream file("client/cli/testdata/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class CheckpointsTest : public ::testing::Test {
 protected:
  ProgramResult Hfctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "checkpoints");
    return RunProgram("client/cli/hfctl", arguments,
                      {{"HYPERFRAMES_COORDINATOR", coordinator_.address()}});
  }
  void Add(int64_t step, v1::CheckpointState state, int ranks, const std::string& message = "") {
    v1::Checkpoint checkpoint;
    checkpoint.set_id("ckpt-" + std::to_string(step));
    checkpoint.set_job_id("job-1");
    checkpoint.set_state(state);
    checkpoint.set_directory("/data/run");
    checkpoint.set_name("step-" + std::to_string(step));
    checkpoint.set_global_step(step);
    checkpoint.set_superframe_id(step / 2);
    checkpoint.set_world_size(2);
    checkpoint.set_message(message);
    checkpoint.set_age_s(200.0 - static_cast<double>(step));
    if (state == v1::CHECKPOINT_STATE_COMMITTED) checkpoint.set_save_s(2.5);
    for (int rank = 0; rank < ranks; ++rank) {
      v1::CheckpointShard* shard = checkpoint.add_shards();
      shard->set_rank(rank);
      shard->set_bytes(3 * kGiB);
      shard->set_digest(std::string(64, 'a'));
    }
    coordinator_.AddCheckpoint(checkpoint);
  }
  void AddSome() {
    Add(150, v1::CHECKPOINT_STATE_OPEN, 1, "waits for rank 1");
    Add(100, v1::CHECKPOINT_STATE_ABORTED, 0, "rank 1 gave up: disk full");
    Add(50, v1::CHECKPOINT_STATE_COMMITTED, 2);
  }

  FakeCoordinator coordinator_;
};

TEST_F(CheckpointsTest, ShowsThoseThatCanBeResumedFrom) {
  AddSome();
  const ProgramResult result = Hfctl({});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out, FileText("checkpoints.golden.txt"));
}

TEST_F(CheckpointsTest, ShowsAllWithWhatIsMissing) {
  AddSome();
  const ProgramResult result = Hfctl({"--all"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out, FileText("checkpoints_all.golden.txt"));
}

TEST_F(CheckpointsTest, ProgramsGetTheWholeMessage) {
  AddSome();
  const ProgramResult result = Hfctl({"-o", "json"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out, FileText("checkpoints.golden.json"));
}

TEST_F(CheckpointsTest, AsksForOneJobAndDirectoryAsTheCoordinatorSpellsIt) {
  EXPECT_EQ(Hfctl({"--job", "job-1", "--directory", "/data/run//", "--limit", "7"}).exit_code,
            kExitOk);
  const v1::ListCheckpointsRequest asked = coordinator_.last_list_checkpoints();
  EXPECT_EQ(asked.job_id(), "job-1");
  EXPECT_EQ(asked.directory(), "/data/run");
  EXPECT_EQ(asked.limit(), 7);
  EXPECT_TRUE(asked.committed_only());
}

TEST_F(CheckpointsTest, NoneIsASentence) {
  EXPECT_EQ(Hfctl({}).out,
            "no committed checkpoints; `hfctl checkpoints --all` shows aborted ones and those "
            "under way too\n");
  EXPECT_EQ(Hfctl({"--all", "--job", "job-1", "--directory", "/data"}).out,
            "no checkpoints of job job-1 in /data; `hf.checkpoint` in a job's script saves "
            "them\n");
}

TEST_F(CheckpointsTest, RefusalsAndWrongWordsGetTheirCodes) {
  EXPECT_EQ(Hfctl({"--limit", "1001"}).exit_code, kExitUsage);
  EXPECT_EQ(Hfctl({"extra"}).exit_code, kExitUsage);
  EXPECT_THAT(Hfctl({"--help"}).out, HasSubstr("--directory"));
  coordinator_.Script("ListCheckpoints", grpc::Status(grpc::StatusCode::INTERNAL, "because"));
  const ProgramResult result = Hfctl({});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_EQ(result.err, "hfctl: because\n");
}

}  // namespace
}  // namespace hyperframes
