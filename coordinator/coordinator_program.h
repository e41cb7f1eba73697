// The real hfcoordinator as a child of a test: started, killed, and started again on its state.
#ifndef HYPERFRAMES_COORDINATOR_COORDINATOR_PROGRAM_H_
#define HYPERFRAMES_COORDINATOR_COORDINATOR_PROGRAM_H_

#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/match.h"

namespace hyperframes {

class CoordinatorProgram : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = "/tmp/hyperframes_program_XXXXXX";
    ASSERT_NE(mkdtemp(&directory_[0]), nullptr);
  }
  void TearDown() override { End(SIGKILL); }
  // Runs it until its address line. `failpoint`: see common/failpoint.h; empty: none.
  void Spawn(const std::string& failpoint = "") {
    int out[2];
    ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      if (!failpoint.empty()) setenv("HYPERFRAMES_FAILPOINT", failpoint.c_str(), 1);
      const std::string state = "--state-directory=" + directory_;
      execl("coordinator/hfcoordinator", "hfcoordinator", "--listen-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0", state.c_str(), "--heartbeat-interval=100ms",
            "--suspected-after=300ms", "--offline-after=1s", nullptr);
      _exit(127);
    }
    close(out[1]);
    std::string line;
    char byte;
    while (read(out[0], &byte, 1) == 1 && byte != '\n') line += byte;
    close(out[0]);
    ASSERT_TRUE(absl::StartsWith(line, "hfcoordinator ready: grpc=127.0.0.1:")) << line;
    const size_t start = line.find("grpc=") + 5;
    channel_ = grpc::CreateChannel(line.substr(start, line.find(' ', start) - start),
                                   grpc::InsecureChannelCredentials());
  }
  // The status that it ended with; with 0 instead of a signal, the one that it ends with by itself.
  int End(int with_signal) {
    if (child_ <= 0) return -1;
    if (with_signal != 0) kill(child_, with_signal);
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    return status;
  }
  static std::unique_ptr<grpc::ClientContext> Within(int seconds) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    return context;
  }

  std::string directory_;
  pid_t child_ = -1;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_COORDINATOR_PROGRAM_H_
