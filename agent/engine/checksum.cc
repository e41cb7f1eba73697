#include "agent/engine/checksum.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "common/frame.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr Bytes kPiece = 8 * kMiB;

uint64_t HashOf(uint64_t before, const char* data, Bytes bytes) {
  return absl::HashOf(before, absl::string_view(data, static_cast<size_t>(bytes)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checksums>> Checksums::Create(Device* device) {
  std::unique_ptr<Stream> lane;
  if (device->description().backend != "host") {
    HF_ASSIGN_OR_RETURN(lane, device->CreateStream(Direction::kOut, Tier::kHost));
  }
  return std::unique_ptr<Checksums>(new Checksums(std::move(lane)));
}

absl::StatusOr<uint64_t> Checksums::Of(const void* data, Bytes bytes, const Event& written) {
  written.Synchronize();
  const char* const begin = static_cast<const char*>(data);
  uint64_t sum = 0;
  if (lane_ == nullptr) {
    for (Bytes at = 0; at < bytes; at += kPiece) {
      sum = HashOf(sum, begin + at, std::min(kPiece, bytes - at));
    }
    return sum;
  }
  MutexLock lock(&mutex_);
  piece_.resize(static_cast<size_t>(
      std::max<Bytes>(std::min(kPiece, bytes), static_cast<Bytes>(piece_.size()))));
  for (Bytes at = 0; at < bytes; at += kPiece) {
    const Bytes size = std::min(kPiece, bytes - at);
    HF_RETURN_IF_ERROR(lane_->Copy(piece_.data(), begin + at, size));
    lane_->Record()->Synchronize();
    sum = HashOf(sum, piece_.data(), size);
  }
  return sum;
}

}  // namespace hyperframes
