#include "agent/engine/lane.h"

#include <utility>

#include "common/status_macros.h"

namespace hyperframes {

absl::StatusOr<std::unique_ptr<Lane>> Lane::Create(Device* device, Direction direction, Tier tier,
                                                   const ChaosOptions& chaos) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device->CreateStream(direction, tier));
  return std::unique_ptr<Lane>(new Lane(std::move(stream), direction, tier, chaos));
}

absl::StatusOr<std::unique_ptr<Lane>> Lane::CreateFor(Memory* memory, Direction direction,
                                                      Tier tier, const ChaosOptions& chaos) {
  HF_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, memory->CreateStream(direction));
  if (stream == nullptr) return std::unique_ptr<Lane>();
  return std::unique_ptr<Lane>(new Lane(std::move(stream), direction, tier, chaos));
}

Lane::Lane(std::unique_ptr<Stream> stream, Direction direction, Tier tier,
           const ChaosOptions& chaos)
    : chaos_(chaos),
      skips_its_event_(chaos.enabled && chaos.skip_event && chaos.skip_direction == direction &&
                       chaos.skip_tier == tier),
      // Lanes draw from sequences of their own, so that a run can be repeated whatever the order
      // in which threads used the lanes.
      random_(chaos.seed * 16 + static_cast<uint64_t>(direction) * 4 + static_cast<uint64_t>(tier)),
      stream_(std::move(stream)) {}

absl::Status Lane::WaitFor(const std::shared_ptr<const Event>& event) {
  if (event == nullptr) return absl::OkStatus();
  return stream_->WaitFor(event);
}

absl::Status Lane::DelayAtRandom() {
  if (!chaos_.enabled || chaos_.longest_delay <= absl::ZeroDuration()) return absl::OkStatus();
  const double share = static_cast<double>(random_() >> 11) / static_cast<double>(1ull << 53);
  return stream_->Delay(chaos_.longest_delay * share);
}

absl::Status Lane::Copy(void* to, const void* from, Bytes bytes,
                        std::shared_ptr<const Event>* done) {
  HF_RETURN_IF_ERROR(DelayAtRandom());
  HF_RETURN_IF_ERROR(stream_->Copy(to, from, bytes));
  *done = stream_->Record();
  return absl::OkStatus();
}

absl::Status Lane::CopyAll(const std::vector<CopyPart>& parts, std::shared_ptr<const Event>* done) {
  HF_RETURN_IF_ERROR(DelayAtRandom());
  HF_RETURN_IF_ERROR(stream_->CopyAll(parts));
  *done = stream_->Record();
  return absl::OkStatus();
}

absl::Status Lane::Poison(void* slot, Bytes bytes) {
  if (!chaos_.enabled) return absl::OkStatus();
  return stream_->Fill(slot, chaos_.poison, bytes);
}

}  // namespace hyperframes
