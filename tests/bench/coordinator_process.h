// The real hfcoordinator as a child, on ports of its own choosing.
#ifndef HYPERFRAMES_TESTS_BENCH_COORDINATOR_PROCESS_H_
#define HYPERFRAMES_TESTS_BENCH_COORDINATOR_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace hyperframes {

// Ended, and its state directory removed, on destruction.
class CoordinatorProcess {
 public:
  // NotFound: no such program. Unavailable: it ended, or said nothing for 20 s; its own words are
  // on stderr.
  static absl::StatusOr<std::unique_ptr<CoordinatorProcess>> Start(const std::string& binary);
  ~CoordinatorProcess();

  const std::string& address() const { return address_; }  // Of its gRPC.
  pid_t pid() const { return pid_; }

 private:
  CoordinatorProcess() = default;

  std::string directory_;
  std::string address_;
  pid_t pid_ = -1;
  int stdout_fd_ = -1;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_TESTS_BENCH_COORDINATOR_PROCESS_H_
