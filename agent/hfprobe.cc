// hfprobe: what an agent has done by a process that may start the CUDA driver, because an agent
// does not. `gpus` lists the GPUs that CUDA sees, `links` measures the paths between them and to
// host memory, both a line of JSON each; `lend` allocates for the agent at the other end of a
// socket.
#include <glog/logging.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>

#include <memory>
#include <string>

#include "agent/arena/lender.h"
#include "agent/arena/lent_gpus.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/service/link_report.h"
#include "common/config.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

struct Flags {
  std::string node = "local";
  absl::Duration time_limit = absl::Milliseconds(60);
  int64_t socket = 0;
};

void Print(const std::string& text) {
  fputs(text.c_str(), stdout);
  fflush(stdout);
}

absl::Status Run(const std::string& what, const Flags& flags) {
  CudaMachineOptions options;
  options.node = flags.node;
  options.host_bytes = kGiB;  // Far more than a measurement pins.
  if (what == "gpus") {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto machine = CudaMachine::Open(options);
    // That there are none is an answer too.
    Print(machine.ok() ? WriteGpuLines(machine->get()) : WriteGpuLines(machine.status()));
    return absl::OkStatus();
  }
  if (what == "links") {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // A killed agent leaves no contexts behind.
    HF_ASSIGN_OR_RETURN(const auto machine, CudaMachine::Open(options));
    // Each line at once: where the driver hangs on one path, the others are known.
    MeasureLinks(*machine, flags.time_limit,
                 [](const LinkReport& one) { Print(WriteLinkLines(one)); });
    return absl::OkStatus();
  }
  if (what == "lend") {
    // No death signal here: it is the thread that asked first whose end would send it.
    HF_ASSIGN_OR_RETURN(const auto machine, CudaMachine::Open(options));
    ServeLending(static_cast<int>(flags.socket), *machine);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("say what to do: hfprobe gpus, hfprobe links");
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  hyperframes::Flags flags;
  hyperframes::Config config("hfprobe", "Speaks to the CUDA driver for an agent.");
  config.set_usage("gpus|links|lend [flags]");
  config.AddString(&flags.node, "node", "name of this node: host memory is the device host:NAME");
  config.AddDuration(&flags.time_limit, "time-limit", "of `links`: for each path, about");
  config.AddInt(&flags.socket, "socket", 0, 65535, "of `lend`: the descriptor to serve on");
  const auto outcome = config.Parse(argc, argv);
  if (outcome.ok() && *outcome == hyperframes::Config::Outcome::kExit) return 0;
  const bool one = outcome.ok() && config.positional().size() == 1;
  const absl::Status status =
      outcome.ok() ? hyperframes::Run(one ? config.positional()[0] : "", flags) : outcome.status();
  if (!status.ok()) fprintf(stderr, "hfprobe: %s\n", std::string(status.message()).c_str());
  return hyperframes::ExitCode(status);
}
