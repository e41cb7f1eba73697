// hfshim: starts one worker, owns its log and exit status, and outlives agents.
// Usage: hfshim WORKER_DIRECTORY (hfagent calls it; nothing is read from the terminal).
#include <stdio.h>

#include <string>

#include "agent/supervisor/shim.h"
#include "common/exit_code.h"

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    fprintf(stderr, "usage: hfshim WORKER_DIRECTORY\nhfagent starts it, once for each worker.\n");
    return 2;
  }
  const absl::Status status = hyperframes::Shim(argv[1]).Run();
  if (!status.ok()) fprintf(stderr, "hfshim: %s\n", std::string(status.message()).c_str());
  return hyperframes::ExitCode(status);
}
