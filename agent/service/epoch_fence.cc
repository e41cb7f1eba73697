#include "agent/service/epoch_fence.h"

#include "absl/strings/numbers.h"
#include "agent/supervisor/record_file.h"
#include "common/status_macros.h"

namespace hyperframes {

absl::Status EpochFence::Open(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRecordFile(path);
  int64_t epoch = 0;
  if (text.ok()) {
    if (!absl::SimpleAtoi(*text, &epoch) || epoch < 0) {
      return absl::DataLossError(path + " holds no coordinator epoch: delete it and start again");
    }
  } else if (!absl::IsNotFound(text.status())) {
    return text.status();
  }
  MutexLock lock(&mutex_);
  path_ = path;
  newest_ = epoch;
  return absl::OkStatus();
}

absl::Status EpochFence::Pass(int64_t epoch) {
  MutexLock lock(&mutex_);
  if (epoch < newest_) {
    return absl::AbortedError(
        "coordinator epoch " + std::to_string(epoch) + " is over: this agent has seen " +
        std::to_string(newest_) + ", so another coordinator leads now" +
        (path_.empty() ? ""
                       : "; if the coordinator's state was deleted on purpose, stop this agent, "
                         "delete " +
                             path_ + " and start it again"));
  }
  if (epoch == newest_) return absl::OkStatus();
  // Written before anything is done in its name.
  if (!path_.empty()) {
    HF_RETURN_IF_ERROR(WriteRecordFile(path_, std::to_string(epoch), /*durable=*/true));
  }
  newest_ = epoch;
  return absl::OkStatus();
}

int64_t EpochFence::newest() const {
  MutexLock lock(&mutex_);
  return newest_;
}

}  // namespace hyperframes
