#include "common/protocol_version.h"

#include "absl/strings/str_cat.h"

namespace hyperframes {

absl::Status CheckProtocol(uint32_t major, uint32_t minor, const std::string& peer) {
  const std::string who = peer.substr(0, 100);
  const std::string ours = absl::StrCat(kProtocolMajor, ".", kProtocolMinor);
  if (major == 0 && minor == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, " sent no protocol version; this side speaks ", ours));
  }
  const bool near = minor <= kProtocolMinor + 1 && minor + 1 >= kProtocolMinor;
  if (major == kProtocolMajor && near && minor != UINT32_MAX) return absl::OkStatus();
  const bool peer_is_older =
      major != kProtocolMajor ? major < kProtocolMajor : minor < kProtocolMinor;
  return absl::FailedPreconditionError(
      absl::StrCat(who, " speaks protocol ", major, ".", minor, ", this side speaks ", ours,
                   " and works with one minor version apart; upgrade ",
                   peer_is_older ? who : std::string("this side")));
}

}  // namespace hyperframes
