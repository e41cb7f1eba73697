#include "agent/transfer/two_nodes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/random_id.h"
#include "common/spawn.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr int kPatienceMs = 60000;

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProgram>> ChildProgram::Start(
    std::vector<std::string> arguments, int inherited) {
  if (access(arguments[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("no program at ", arguments[0],
                                            "; build //agent:hftransfer and name it with "
                                            "--hftransfer"));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError("no pipe");
  std::unique_ptr<ChildProgram> program(new ChildProgram());
  program->output_.reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  SpawnOptions spawn;
  spawn.arguments = std::move(arguments);
  spawn.output = theirs.get();
  spawn.inherited = inherited;
  HF_ASSIGN_OR_RETURN(program->pid_, Spawn(spawn));
  return program;
}

ChildProgram::~ChildProgram() {
  if (pid_ <= 0) return;
  // Never to one that runs: it may be ending already, under LeakSanitizer, whose look at the whole
  // process such a signal makes endless.
  if (stopped_) kill(pid_, SIGCONT);
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
}

void ChildProgram::Signal(int number) const {
  stopped_ = number == SIGSTOP;
  kill(pid_, number);
}

std::string ChildProgram::ReadLine() {
  std::string line;
  pollfd readable = {output_.get(), POLLIN, 0};
  char c = 0;
  while (poll(&readable, 1, kPatienceMs) > 0 && read(output_.get(), &c, 1) == 1 && c != '\n') {
    line += c;
  }
  return line;
}

absl::StatusOr<std::unique_ptr<TwoNodes>> TwoNodes::Start(const TwoNodesOptions& options) {
  std::unique_ptr<TwoNodes> nodes(new TwoNodes(options));
  nodes->directory_ = "/tmp/hfnodes.XXXXXX";  // Short: it is part of a socket's path.
  if (mkdtemp(nodes->directory_.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("cannot make ", nodes->directory_));
  }
  nodes->table_ = std::make_unique<LeaseTable>(std::vector<LendingDevice>{{options.far, 0}},
                                               MonotonicClock(), /*journal=*/nullptr);
  nodes->table_->Restore({});
  DescriptorServerOptions server;
  server.socket_path = nodes->directory_ + "/socket";
  HF_ASSIGN_OR_RETURN(nodes->server_,
                      DescriptorServer::Start(server, nodes->table_.get(), /*observer=*/nullptr));
  const auto arguments = [&options](const Device& gpu) {
    return std::vector<std::string>{
        options.hftransfer,     "--backend",      options.backend,      "--gpu",
        gpu.description().uuid, "--nccl-library", options.nccl_library, "--deadline",
        options.deadline};
  };
  std::vector<std::string> far = arguments(*options.far);
  far.insert(far.end(), {"--agent-socket", server.socket_path, "--lifeline", "3"});
  int life[2];
  if (pipe2(life, O_CLOEXEC) != 0) return absl::InternalError("no pipe");
  const UniqueFd far_end(life[0]);
  nodes->lifeline_.reset(life[1]);
  setenv("NCCL_HOSTID", "far", /*overwrite=*/1);
  HF_ASSIGN_OR_RETURN(nodes->far_, ChildProgram::Start(std::move(far), far_end.get()));
  setenv("NCCL_HOSTID", "near", /*overwrite=*/1);
  const std::string line = nodes->far_->ReadLine();
  const std::string mark = "address=";
  const size_t at = line.find(mark);
  if (at == std::string::npos) {
    return absl::UnavailableError(
        absl::StrCat(options.hftransfer, " said \"", line.substr(0, 128), "\" on the far side"));
  }
  nodes->address_ = line.substr(at + mark.size());
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::InternalError("no socket pair");
  }
  const UniqueFd theirs(ends[1]);
  nodes->channel_ = TransferChannel::Adopt(UniqueFd(ends[0]), absl::Seconds(60));
  std::vector<std::string> near = arguments(*options.near);
  near.insert(near.end(), {"--worker-descriptor", "3"});
  HF_ASSIGN_OR_RETURN(nodes->near_, ChildProgram::Start(std::move(near), theirs.get()));
  return nodes;
}

TwoNodes::~TwoNodes() {
  channel_.reset();
  near_.reset();
  far_.reset();
  server_.reset();
  if (directory_.empty()) return;
  unlink((directory_ + "/socket").c_str());
  unlink((directory_ + "/socket.lock").c_str());
  rmdir(directory_.c_str());
}

absl::StatusOr<std::unique_ptr<Memory>> TwoNodes::Lease(Bytes bytes, Bytes staging_bytes) {
  LeaseRecord wanted;
  wanted.lease_id = absl::StrCat("bench-", leases_++);
  wanted.job_id = "bench";
  wanted.token = RandomHex(16);
  wanted.device = options_.far->description().uuid;
  wanted.bytes = bytes;
  HF_RETURN_IF_ERROR(table_->Prepare(wanted).status());
  HF_RETURN_IF_ERROR(table_->Commit(wanted.lease_id).status());
  RemoteLease lease;
  lease.lease_id = wanted.lease_id;
  lease.token = wanted.token;
  lease.node = "far";
  lease.address = address_;
  lease.bytes = bytes;
  lease.staging_bytes = staging_bytes;
  return channel_->Open(options_.near, lease);
}

}  // namespace hyperframes
