// Rendezvous ports of jobs, bound until they are no longer needed, so that no two jobs of this node
// get the same one (docs/cases.md C17).
#ifndef HYPERFRAMES_AGENT_SUPERVISOR_PORT_HOLDER_H_
#define HYPERFRAMES_AGENT_SUPERVISOR_PORT_HOLDER_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/unique_fd.h"

namespace hyperframes {

// A port held for a job that never starts a worker here is given back after this long.
constexpr absl::Duration kUnusedPortTimeout = absl::Minutes(5);

// Thread-safe.
class PortHolder {
 public:
  explicit PortHolder(const Clock* clock, size_t most_ports = 1024)
      : clock_(clock), most_ports_(most_ports) {}

  // The same port again for the same job. It is bound with SO_REUSEADDR and never listened on, so
  // that a worker which sets SO_REUSEADDR too (torch's TCPStore does) can listen on it meanwhile,
  // and nobody is given it by the kernel. ResourceExhausted: none is left.
  absl::StatusOr<int> Reserve(const std::string& job_id) HF_EXCLUDES(mutex_);

  // Takes back the ports that an earlier agent held, as the file `path` tells, where they are free.
  // One that is not is most often listened on by the job's own worker, and then nobody else can
  // get it either: it is taken when that ends. Keeps the file up to date from now on. Call once,
  // first.
  void Restore(const std::string& path) HF_EXCLUDES(mutex_);

  // A worker of the job has been started here. Told, because one that lives for milliseconds is
  // never seen by Tick, and its job's port would count as unused for minutes: a thousand such jobs,
  // and the next one would get none.
  void Started(const std::string& job_id) HF_EXCLUDES(mutex_);

  // Gives back the ports of jobs whose workers have all ended. `running` says how many a job has.
  void Tick(const std::function<int(const std::string& job_id)>& running) HF_EXCLUDES(mutex_);

  size_t held() const HF_EXCLUDES(mutex_);

 private:
  struct Port {
    UniqueFd socket;  // Invalid: not ours yet again.
    int number = 0;
    absl::Time since;
    bool used = false;  // A worker of the job has been started or seen.
  };

  void Save() HF_REQUIRES(mutex_);

  const Clock* const clock_;
  const size_t most_ports_;
  mutable Mutex mutex_;
  std::string path_ HF_GUARDED_BY(mutex_);  // Empty: nothing survives a restart.
  std::map<std::string, Port> ports_ HF_GUARDED_BY(mutex_);
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SUPERVISOR_PORT_HOLDER_H_
