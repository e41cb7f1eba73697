// Two nodes on this machine, for tests and benchmarks: the arena of a lending agent, an hftransfer
// on either side, and the channel of a training process.
#ifndef HYPERFRAMES_AGENT_TRANSFER_TWO_NODES_H_
#define HYPERFRAMES_AGENT_TRANSFER_TWO_NODES_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/arena/descriptor_server.h"
#include "agent/arena/lease_table.h"
#include "agent/device/device.h"
#include "agent/transfer/transfer_channel.h"
#include "common/unique_fd.h"

namespace hyperframes {

// A program that ends with this object.
class ChildProgram {
 public:
  // `inherited` (or -1) becomes its descriptor 3.
  static absl::StatusOr<std::unique_ptr<ChildProgram>> Start(std::vector<std::string> arguments,
                                                             int inherited);
  ~ChildProgram();
  // The next line of its output, without the end. Empty: it has ended, or said nothing in 60 s.
  std::string ReadLine();
  void Signal(int number) const;

 private:
  ChildProgram() = default;
  pid_t pid_ = -1;
  mutable std::atomic<bool> stopped_{false};  // By Signal.
  UniqueFd output_;
};

struct TwoNodesOptions {
  std::string hftransfer;
  std::string backend;
  std::string nccl_library;
  std::string deadline = "20s";  // Of both programs.
  Device* near = nullptr;        // Where the training process computes.
  Device* far = nullptr;         // What the other node lends.
};

// The devices outlive it; they may be one GPU. NCCL is told, through the programs' environments
// (and this process's), that they run on different hosts, so that it uses its network transport.
class TwoNodes {
 public:
  static absl::StatusOr<std::unique_ptr<TwoNodes>> Start(const TwoNodesOptions& options);
  ~TwoNodes();

  // A lease of `bytes` on the far device, as memory of the near one.
  absl::StatusOr<std::unique_ptr<Memory>> Lease(Bytes bytes, Bytes staging_bytes);
  const ChildProgram& far() const { return *far_; }
  const ChildProgram& near() const { return *near_; }
  Bytes lent() const { return table_->Usage()[0].lent_bytes; }

 private:
  explicit TwoNodes(const TwoNodesOptions& options) : options_(options) {}

  const TwoNodesOptions options_;
  std::string directory_;
  std::unique_ptr<LeaseTable> table_;
  std::unique_ptr<DescriptorServer> server_;
  UniqueFd lifeline_;  // Ends the far side also when this process is killed.
  std::unique_ptr<ChildProgram> far_;
  std::unique_ptr<ChildProgram> near_;
  std::string address_;
  std::shared_ptr<TransferChannel> channel_;
  int leases_ = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_TRANSFER_TWO_NODES_H_
