#include "agent/supervisor/port_holder.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <utility>

namespace hyperframes {

absl::StatusOr<int> PortHolder::Reserve(const std::string& job_id) {
  MutexLock lock(&mutex_);
  const auto existing = ports_.find(job_id);
  if (existing != ports_.end()) return existing->second.number;
  if (ports_.size() >= most_ports_) {
    return absl::ResourceExhaustedError("this node holds " + std::to_string(most_ports_) +
                                        " rendezvous ports already");
  }
  Port port;
  port.socket.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const int on = 1;
  // Bound before it may be shared: then the kernel chooses a port that nobody else has at all.
  if (!port.socket.valid() ||
      bind(port.socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      getsockname(port.socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      setsockopt(port.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) {
    return absl::ResourceExhaustedError(std::string("no rendezvous port: ") + strerror(errno));
  }
  port.number = ntohs(address.sin_port);
  port.since = clock_->Now();
  const int number = port.number;
  ports_.emplace(job_id, std::move(port));
  return number;
}

void PortHolder::Tick(const std::function<int(const std::string& job_id)>& running) {
  MutexLock lock(&mutex_);
  for (auto port = ports_.begin(); port != ports_.end();) {
    const bool runs = running(port->first) > 0;
    port->second.used = port->second.used || runs;
    const bool over =
        port->second.used ? !runs : clock_->Now() - port->second.since >= kUnusedPortTimeout;
    port = over ? ports_.erase(port) : std::next(port);
  }
}

size_t PortHolder::held() const {
  MutexLock lock(&mutex_);
  return ports_.size();
}

}  // namespace hyperframes
