// The agent's end of the descriptor channel: hands a lease's descriptor to whoever shows its token,
// and gives the bytes back the moment the process that mapped it is gone. One thread, epoll,
// bounded connections.
#ifndef HYPERFRAMES_AGENT_ARENA_DESCRIPTOR_SERVER_H_
#define HYPERFRAMES_AGENT_ARENA_DESCRIPTOR_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/arena/descriptor_wire.h"
#include "agent/arena/lease_table.h"
#include "agent/arena/listening_socket.h"
#include "common/mutex.h"

namespace hyperframes {

// Called on the server's thread, one call at a time.
class DescriptorServerObserver {
 public:
  virtual ~DescriptorServerObserver() = default;
  // A worker said hello. `counters` is the page that it shares, or invalid. Untrusted.
  virtual void WorkerConnected(const std::string& worker_id, const ProcessIdentity& process,
                               UniqueFd counters) = 0;
  virtual void WorkerDisconnected(const std::string& worker_id, const ProcessIdentity& process) = 0;
  // A revoked lease whose holder has not returned it in time: its process has to end. Called again
  // and again until the lease is back.
  virtual void LeaseOverdue(const LeaseRecord& /*lease*/) {}
  // A worker that computes on `gpu`, as it says, wants a hftransfer of its own: its end of the
  // socket to it. Does not block.
  virtual absl::StatusOr<UniqueFd> StartTransfer(const std::string& /*worker_id*/,
                                                 const std::string& /*gpu*/) {
    return absl::UnimplementedError("this agent moves no frames to other nodes");
  }
};

struct DescriptorServerOptions {
  std::string socket_path;
  size_t most_connections = 1024;
  absl::Duration tick_interval = absl::Milliseconds(200);  // Of LeaseTable::Tick.
};

// Thread-safe.
class DescriptorServer {
 public:
  // Monotonic since start. Nothing leaks when opened equals closed.
  struct Counters {
    int64_t connections_opened = 0;
    int64_t connections_closed = 0;
    int64_t mappings_opened = 0;  // A lease mapped or handed back on a connection.
    int64_t mappings_closed = 0;
    int64_t refused_messages = 0;
  };

  // `leases` and `observer` (may be null) outlive the server. Statuses as ListeningSocket::Open.
  static absl::StatusOr<std::unique_ptr<DescriptorServer>> Start(
      DescriptorServerOptions options, LeaseTable* leases, DescriptorServerObserver* observer);
  // The same on a socket that was opened before, so that its lock guards what happens in between.
  static absl::StatusOr<std::unique_ptr<DescriptorServer>> Start(
      DescriptorServerOptions options, std::unique_ptr<ListeningSocket> listener,
      LeaseTable* leases, DescriptorServerObserver* observer);
  // Stops serving. Leases stay as they are: their holders may outlive this agent.
  ~DescriptorServer();

  // Asks the holder of `lease_id` for it; `overdue`: says that its time to return it is over.
  // False: nobody has it mapped.
  bool SendRevocation(const std::string& lease_id, bool overdue = false) HF_EXCLUDES(mutex_);
  Counters counters() const HF_EXCLUDES(mutex_);
  const std::string& socket_path() const { return listener_->path(); }

 private:
  struct Connection {
    UniqueFd socket;
    UniqueFd process_descriptor;  // Readable once the process has ended.
    ProcessIdentity process;
    std::string worker_id;
    bool said_hello = false;
    std::set<std::string> mapped;
  };

  DescriptorServer(DescriptorServerOptions options, LeaseTable* leases,
                   DescriptorServerObserver* observer, std::unique_ptr<ListeningSocket> listener);
  void Run();
  void HandleEvent(uint64_t event);
  void Accept();
  absl::Status Admit(Connection* connection);
  void HandleReadable(uint64_t number);
  // False: the connection must be closed.
  bool HandleMessage(Connection* connection, Received received);
  bool Hello(Connection* connection, Received received);
  bool MapLease(Connection* connection, const WireMessage& request);
  absl::Status OfferLease(Connection* connection, Received received);
  absl::Status ReturnLease(Connection* connection, const std::string& lease_id);
  bool StartTransfer(Connection* connection, const WireMessage& request);
  void Refuse(int socket, const WireMessage& request, WireError error);
  void AddMapping(Connection* connection, const std::string& lease_id);
  void RemoveMapping(Connection* connection, const std::string& lease_id);
  void Close(uint64_t number);

  const DescriptorServerOptions options_;
  LeaseTable* const leases_;
  DescriptorServerObserver* const observer_;
  const std::unique_ptr<ListeningSocket> listener_;
  UniqueFd epoll_;
  UniqueFd stop_;
  std::map<uint64_t, Connection> connections_;  // Of the thread alone.
  uint64_t next_connection_ = 1;
  mutable Mutex mutex_;
  std::map<std::string, int> holders_ HF_GUARDED_BY(mutex_);  // Lease to socket, while it is open.
  Counters counters_ HF_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_DESCRIPTOR_SERVER_H_
