// What a restarted agent knows of the leases that its predecessor gave: one small file each.
#ifndef HYPERFRAMES_AGENT_ARENA_LEASE_RECORDS_H_
#define HYPERFRAMES_AGENT_ARENA_LEASE_RECORDS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/arena/lease_table.h"

namespace hyperframes {

// Files of one directory, replaced by rename, so that a killed agent never leaves half a record.
// They are not fsynced: leased memory does not outlive the kernel that an fsync guards against, and
// records of an earlier boot are dropped. Holds tokens: the directory is for this user alone.
class LeaseRecords final : public LeaseJournal {
 public:
  // Makes the directory if need be. Unavailable: it cannot be used; the message says why.
  static absl::StatusOr<std::unique_ptr<LeaseRecords>> Open(const std::string& directory);

  // Every readable record of this boot. Others are deleted, with a line in the log.
  std::vector<LeaseRecord> Load() const;

  // Unavailable: the file system refuses; nothing has changed then.
  absl::Status Save(const LeaseRecord& record) override;
  void Forget(const std::string& lease_id) override;

 private:
  explicit LeaseRecords(std::string directory) : directory_(std::move(directory)) {}
  std::string PathOf(const std::string& lease_id) const;

  const std::string directory_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ARENA_LEASE_RECORDS_H_
