#include "agent/supervisor/port_holder.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <sstream>
#include <utility>

#include "agent/supervisor/record_file.h"

namespace hyperframes {
namespace {

// Bound to `number`, or to a port of the kernel's choice for 0; `number` says which. Invalid: it is
// not to be had.
UniqueFd Bind(int* number) {
  UniqueFd bound(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(*number));
  socklen_t length = sizeof(address);
  const int on = 1;
  // Bound before it may be shared: then it is a port that nobody else has at all.
  if (!bound.valid() ||
      bind(bound.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      getsockname(bound.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      setsockopt(bound.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) {
    return UniqueFd();
  }
  *number = ntohs(address.sin_port);
  return bound;
}

}  // namespace

absl::StatusOr<int> PortHolder::Reserve(const std::string& job_id) {
  MutexLock lock(&mutex_);
  const auto existing = ports_.find(job_id);
  if (existing != ports_.end()) {
    Port& port = existing->second;
    if (!port.socket.valid()) port.socket = Bind(&port.number);
    // A next attempt of the job: its workers are still to come.
    port.used = false;
    port.since = clock_->Now();
    if (port.socket.valid()) return port.number;
    ports_.erase(existing);  // A new start of the job; whoever has that port keeps it.
  }
  if (ports_.size() >= most_ports_) {
    return absl::ResourceExhaustedError("this node holds " + std::to_string(most_ports_) +
                                        " rendezvous ports already");
  }
  Port port;
  port.socket = Bind(&port.number);
  if (!port.socket.valid()) {
    return absl::ResourceExhaustedError(std::string("no rendezvous port: ") + strerror(errno));
  }
  port.since = clock_->Now();
  const int number = port.number;
  ports_.emplace(job_id, std::move(port));
  Save();
  return number;
}

void PortHolder::Restore(const std::string& path) {
  MutexLock lock(&mutex_);
  path_ = path;
  const absl::StatusOr<std::string> text = ReadRecordFile(path);
  if (!text.ok()) return;
  std::istringstream lines(*text);
  std::string job_id;
  for (int number = 0; ports_.size() < most_ports_ && lines >> number >> job_id;) {
    if (number <= 0 || number > 65535) continue;
    Port& port = ports_[job_id];
    port.number = number;
    port.socket = Bind(&port.number);
    port.since = clock_->Now();
  }
}

void PortHolder::Save() {
  if (path_.empty()) return;
  std::ostringstream lines;
  for (const auto& [job_id, port] : ports_) lines << port.number << " " << job_id << "\n";
  // Should this fail, a restarted agent holds fewer ports: jobs that run have theirs already.
  WriteRecordFile(path_, lines.str(), /*durable=*/false).IgnoreError();
}

void PortHolder::Started(const std::string& job_id) {
  MutexLock lock(&mutex_);
  const auto port = ports_.find(job_id);
  if (port != ports_.end()) port->second.used = true;
}

void PortHolder::Tick(const std::function<int(const std::string& job_id)>& running) {
  MutexLock lock(&mutex_);
  const size_t before = ports_.size();
  for (auto port = ports_.begin(); port != ports_.end();) {
    if (!port->second.socket.valid()) port->second.socket = Bind(&port->second.number);
    const bool runs = running(port->first) > 0;
    port->second.used = port->second.used || runs;
    const bool over =
        port->second.used ? !runs : clock_->Now() - port->second.since >= kUnusedPortTimeout;
    port = over ? ports_.erase(port) : std::next(port);
  }
  if (ports_.size() != before) Save();
}

size_t PortHolder::held() const {
  MutexLock lock(&mutex_);
  return ports_.size();
}

}  // namespace hyperframes
