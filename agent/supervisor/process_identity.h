// Who a process is, beyond its number: pids are reused, so a pid alone must never be signalled or
// believed after its owner may have ended. Boot and start time make it unique.
#ifndef HYPERFRAMES_AGENT_SUPERVISOR_PROCESS_IDENTITY_H_
#define HYPERFRAMES_AGENT_SUPERVISOR_PROCESS_IDENTITY_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hyperframes {

struct ProcessIdentity {
  pid_t pid = 0;            // 0: nobody.
  uint64_t start_time = 0;  // Clock ticks since boot, field 22 of /proc/PID/stat.
  std::string boot_id;      // /proc/sys/kernel/random/boot_id.
};

bool operator==(const ProcessIdentity& a, const ProcessIdentity& b);

// The identity of a process that exists now (a zombie exists); pid 0 when it does not.
ProcessIdentity IdentifyProcess(pid_t pid);

// True while exactly that process runs. A zombie, or a process on its way out, does not.
bool ProcessRuns(const ProcessIdentity& identity);

// This boot's identity; empty when the kernel does not tell.
const std::string& BootId();

// Every living descendant of `root` that can be found now, nearest first, without `root` itself.
// Zombies are left out: nothing can be sent to them. A process forked while this looks may be
// missed: whoever kills a tree repeats until nothing is found.
std::vector<ProcessIdentity> Descendants(pid_t root);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SUPERVISOR_PROCESS_IDENTITY_H_
