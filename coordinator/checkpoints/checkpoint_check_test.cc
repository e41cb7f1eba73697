#include "coordinator/checkpoints/checkpoint_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace hyperframes {
namespace {

v1::BeginCheckpointRequest Good() {
  v1::BeginCheckpointRequest request;
  request.set_directory("/data/run");
  request.set_name("step-00000050");
  request.set_global_step(50);
  request.set_world_size(2);
  return request;
}

v1::CheckpointShard GoodShard() {
  v1::CheckpointShard shard;
  shard.set_digest(std::string(32, '0') + std::string(32, 'f'));
  return shard;
}

void ExpectBad(const absl::Status& status, const std::string& field) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << field << ": " << status;
  EXPECT_TRUE(absl::StartsWith(status.message(), field)) << status;
  EXPECT_LT(status.message().size(), 400u) << status;
}

TEST(CheckpointCheck, AcceptsOrdinaryPathsAndNames) {
  for (const char* directory : {"/d", "/data/run", "/data/.hidden/..x/a b", "/mnt/\xc3\xa4"}) {
    EXPECT_TRUE(CheckCheckpointDirectory(directory).ok()) << directory;
  }
  EXPECT_TRUE(CheckCheckpointDirectory("/" + std::string(1023, 'x')).ok());
  for (const char* name : {"s", "step-00000050", "a_b.c", "-"}) {
    EXPECT_TRUE(CheckCheckpointName(name).ok()) << name;
  }
  EXPECT_TRUE(CheckBegin(Good()).ok());
  EXPECT_TRUE(CheckShard(GoodShard()).ok());
}

TEST(CheckpointCheck, RefusesADirectoryThatHasAnotherNameAsWell) {
  for (const char* directory :
       {"", "/", "data/run", "/data//run", "/data/run/", "/data/./run", "/.", "/data/../run", "/..",
        "/data/run/..", "/data/\nrun", "/data/\x7f"}) {
    ExpectBad(CheckCheckpointDirectory(directory), "directory '");
  }
  ExpectBad(CheckCheckpointDirectory("/" + std::string(1024, 'x')), "directory '/xxx");
}

TEST(CheckpointCheck, RefusesANameThatIsNoFolderInside) {
  for (const char* name : {"", ".", "..", ".step", "a/b", "/a", "a b", "a\n", "\xc3\xa4"}) {
    ExpectBad(CheckCheckpointName(name), "name '");
  }
  ExpectBad(CheckCheckpointName(std::string(129, 'x')), "name '");
}

TEST(CheckpointCheck, NamesTheFieldOfABeginThatCannotBeRight) {
  using Edit = std::function<void(v1::BeginCheckpointRequest*)>;
  const std::vector<std::pair<std::string, Edit>> edits = {
      {"directory 'x'", [](auto* request) { request->set_directory("x"); }},
      {"name '.x'", [](auto* request) { request->set_name(".x"); }},
      {"global_step '-1'", [](auto* request) { request->set_global_step(-1); }},
      {"superframe_id '-1'", [](auto* request) { request->set_superframe_id(-1); }},
      {"world_size '0'", [](auto* request) { request->set_world_size(0); }},
      {"topology_hash 'a b'", [](auto* request) { request->set_topology_hash("a b"); }},
      {"topology_hash '", [](auto* request) { request->set_topology_hash(std::string(129, 'a')); }},
  };
  for (const auto& edit : edits) {
    v1::BeginCheckpointRequest request = Good();
    edit.second(&request);
    ExpectBad(CheckBegin(request), edit.first);
  }
}

TEST(CheckpointCheck, NamesTheFieldOfAPartThatCannotBeRight) {
  for (const std::string& digest :
       {std::string(), std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'A'),
        std::string(64, 'g'), "sha256:" + std::string(57, 'a')}) {
    v1::CheckpointShard shard = GoodShard();
    shard.set_digest(digest);
    ExpectBad(CheckShard(shard), "shard.digest '");
  }
  v1::CheckpointShard shard = GoodShard();
  shard.set_bytes(-1);
  ExpectBad(CheckShard(shard), "shard.bytes '-1'");
  shard = GoodShard();
  for (int i = 0; i < 4096; ++i) shard.add_micro_batches(i);
  EXPECT_TRUE(CheckShard(shard).ok());
  shard.add_micro_batches(4096);
  ExpectBad(CheckShard(shard), "shard.micro_batches '4097 ids'");
  shard.mutable_micro_batches()->Truncate(1);
  shard.set_micro_batches(0, -5);
  ExpectBad(CheckShard(shard), "shard.micro_batches '-5'");
}

}  // namespace
}  // namespace hyperframes
