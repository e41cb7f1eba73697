// A bound on calls that wait inside a server thread, so that waiting never starves the others.
#ifndef HYPERFRAMES_COORDINATOR_SERVICE_WAITING_CALLS_H_
#define HYPERFRAMES_COORDINATOR_SERVICE_WAITING_CALLS_H_

#include <atomic>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hyperframes {

class WaitingCalls {
 public:
  explicit WaitingCalls(int most) : most_(most) {}

  // Holds one place while it lives. Check status() first: ResourceExhausted when there was none.
  class Place {
   public:
    explicit Place(WaitingCalls* calls) : calls_(calls) {
      if (calls_->waiting_.fetch_add(1) < calls_->most_) return;
      calls_->waiting_.fetch_sub(1);
      status_ = absl::ResourceExhaustedError(absl::StrCat(
          calls_->most_, " calls wait already, which is the bound; try again in a moment"));
    }
    ~Place() {
      if (status_.ok()) calls_->waiting_.fetch_sub(1);
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    const absl::Status& status() const { return status_; }

   private:
    WaitingCalls* const calls_;
    absl::Status status_;
  };

  int waiting() const { return waiting_.load(); }

 private:
  const int most_;
  std::atomic<int> waiting_{0};
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_SERVICE_WAITING_CALLS_H_
