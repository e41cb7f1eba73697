// Room: coordinator/store. Where the coordinator keeps what it has promised. The interface is what
// SQLite and etcd have in common: a flat key space with one revision that grows with every commit,
// and transactions guarded by revisions. It knows nothing of jobs, plans or nodes.
#ifndef HYPERFRAMES_COORDINATOR_STORE_STORE_H_
#define HYPERFRAMES_COORDINATOR_STORE_STORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/units.h"

namespace hyperframes {

constexpr size_t kStoreMaxKeyBytes = 512;
constexpr Bytes kStoreMaxValueBytes = 64 * kMiB;
constexpr size_t kStoreMaxOperations = 8192;  // In one transaction, compares included.

struct StoreEntry {
  std::string key;
  std::string value;
  int64_t mod_revision = 0;  // Revision of the commit that last wrote the key; always > 0.
};

// All or nothing: every compare holds and every put and delete happens, or none does.
struct Transaction {
  // Holds when the key's mod_revision is exactly this; 0 means that the key is absent.
  struct Compare {
    std::string key;
    int64_t mod_revision = 0;
  };
  struct Put {
    std::string key;
    std::string value;
  };
  std::vector<Compare> compares;
  std::vector<Put> puts;
  std::vector<std::string> deletes;  // Of absent keys: no error.
};

class Store {
 public:
  virtual ~Store() = default;

  // NotFound: no such key. Unavailable: the store cannot be reached or is busy past its timeout.
  // DataLoss: it is damaged. Thread-safe, like every method here.
  virtual absl::StatusOr<StoreEntry> Get(const std::string& key) = 0;

  // Entries whose key starts with `prefix`, by key, at most `limit` (> 0). Statuses as Get, without
  // NotFound: nothing there is an empty answer.
  virtual absl::StatusOr<std::vector<StoreEntry>> List(const std::string& prefix, int limit) = 0;

  // The revision of the commit, which is on the disk when this returns OK. Aborted: a compare did
  // not hold (the message names the first such key); nothing was changed. InvalidArgument: an empty
  // or too long key, a key that is put or deleted twice, too many operations, a value past
  // kStoreMaxValueBytes. Other statuses as Get; after Unavailable the commit may have happened.
  virtual absl::StatusOr<int64_t> Commit(const Transaction& transaction) = 0;
};

// The bounds above, for implementations.
absl::Status CheckTransaction(const Transaction& transaction);

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_STORE_STORE_H_
