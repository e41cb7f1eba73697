// The checksum of verify mode: absl's 64-bit hash, at several GB/s. Its seed changes from process
// to process, which is no loss: both ends of a comparison are in this one.
#ifndef HYPERFRAMES_AGENT_ENGINE_CHECKSUM_H_
#define HYPERFRAMES_AGENT_ENGINE_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "common/units.h"

namespace hyperframes {

inline uint64_t Checksum(const void* data, Bytes bytes) {
  return absl::Hash<absl::string_view>()(
      absl::string_view(static_cast<const char*>(data), static_cast<size_t>(bytes)));
}

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_ENGINE_CHECKSUM_H_
