#include "agent/device/borrowed_memory.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

// The lender's allocation, which counts against its limit, and the mapping of it.
class LentAndMapped final : public Memory {
 public:
  LentAndMapped(std::unique_ptr<Memory> lent, std::unique_ptr<Memory> mapped)
      : lent_(std::move(lent)), mapped_(std::move(mapped)) {}

  char* data() const override { return mapped_->data(); }
  Bytes bytes() const override { return mapped_->bytes(); }
  int descriptor() const override { return lent_->descriptor(); }
  absl::Status WaitUntilUsable() const override { return mapped_->WaitUntilUsable(); }
  double usable_share() const override { return mapped_->usable_share(); }

 private:
  const std::unique_ptr<Memory> lent_;
  const std::unique_ptr<Memory> mapped_;  // Last: unmapped before it is given back.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Memory>> BorrowMemory(Device* user, Device* lender, Bytes bytes) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Memory> lent, lender->Allocate(bytes));
  // A simulated GPU is this process's own memory: mapping it twice would gain nothing.
  if (user->description().backend == "host" && lent->data() != nullptr) return lent;
  const int descriptor = fcntl(lent->descriptor(), F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) {
    return absl::InternalError(absl::StrCat("cannot duplicate the descriptor of ",
                                            FormatBytes(bytes), " on ", lender->description().uuid,
                                            ": ", std::strerror(errno)));
  }
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Memory> mapped, user->Map(descriptor, bytes));
  return std::unique_ptr<Memory>(new LentAndMapped(std::move(lent), std::move(mapped)));
}

}  // namespace hyperframes
