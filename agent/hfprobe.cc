// hfprobe: measures the links between this machine's GPUs and to its host memory, prints a line of
// JSON for each, and ends. An agent runs it because measuring takes contexts, and an agent has
// none.
#include <glog/logging.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>

#include <string>

#include "agent/device/cuda/cuda_machine.h"
#include "agent/service/link_report.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Bytes kPinned = kGiB;  // Far more than a measurement pins.

absl::Status Run(const std::string& node, absl::Duration time_limit) {
  CudaMachineOptions options;
  options.node = node;
  options.host_bytes = kPinned;
  HF_ASSIGN_OR_RETURN(const auto machine, CudaMachine::Open(options));
  // Each line at once: where the driver hangs on one path, the others are known.
  MeasureLinks(*machine, time_limit, [](const LinkReport& one) {
    fputs(WriteLinkLines(one).c_str(), stdout);
    fflush(stdout);
  });
  return absl::OkStatus();
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // A killed agent leaves no contexts behind.
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  std::string node = "local";
  absl::Duration time_limit = absl::Milliseconds(60);
  hyperframes::Config config("hfprobe", "Measures the links of this machine's GPUs.");
  config.AddString(&node, "node", "name of this node: host memory is the device host:NAME");
  config.AddDuration(&time_limit, "time-limit", "for each path, about");
  const auto outcome = config.Parse(argc, argv);
  if (outcome.ok() && *outcome == hyperframes::Config::Outcome::kExit) return 0;
  const absl::Status status = outcome.ok() ? hyperframes::Run(node, time_limit) : outcome.status();
  if (!status.ok()) fprintf(stderr, "hfprobe: %s\n", std::string(status.message()).c_str());
  return hyperframes::ExitCode(status);
}
