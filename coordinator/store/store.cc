#include "coordinator/store/store.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

absl::Status CheckKey(const std::string& key) {
  if (key.empty()) return absl::InvalidArgumentError("a store key is empty");
  if (key.size() > kStoreMaxKeyBytes || key.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("store key '", key.substr(0, 64), "...' has ",
                                                   key.size(), " bytes or a zero byte; at most ",
                                                   kStoreMaxKeyBytes, " and none are accepted"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTransaction(const Transaction& transaction) {
  const size_t operations =
      transaction.compares.size() + transaction.puts.size() + transaction.deletes.size();
  if (operations > kStoreMaxOperations) {
    return absl::InvalidArgumentError(absl::StrCat("a transaction of ", operations,
                                                   " operations; at most ", kStoreMaxOperations,
                                                   " are accepted: split it"));
  }
  std::set<std::string> written;
  for (const auto& compare : transaction.compares) {
    HF_RETURN_IF_ERROR(CheckKey(compare.key));
  }
  for (const auto& put : transaction.puts) {
    HF_RETURN_IF_ERROR(CheckKey(put.key));
    if (static_cast<Bytes>(put.value.size()) > kStoreMaxValueBytes) {
      return absl::InvalidArgumentError(absl::StrCat("value of '", put.key, "' has ",
                                                     put.value.size(), " bytes; at most ",
                                                     kStoreMaxValueBytes, " are accepted"));
    }
    if (!written.insert(put.key).second) {
      return absl::InvalidArgumentError(absl::StrCat("'", put.key, "' is written twice"));
    }
  }
  for (const auto& key : transaction.deletes) {
    HF_RETURN_IF_ERROR(CheckKey(key));
    if (!written.insert(key).second) {
      return absl::InvalidArgumentError(absl::StrCat("'", key, "' is written twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace hyperframes
