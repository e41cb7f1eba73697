#include "agent/engine/manual_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

class ManualEvent final : public Event, public std::enable_shared_from_this<ManualEvent> {
 public:
  explicit ManualEvent(ManualDevice* device) : device_(device) {}
  bool Done() const override { return done_; }
  void Synchronize() const override { device_->StepUntilDone(*this); }
  void Set() { done_ = true; }

 private:
  ManualDevice* const device_;
  bool done_ = false;
};

class HeapMemory final : public Memory {
 public:
  explicit HeapMemory(Bytes bytes) : data_(bytes, 0) {}
  char* data() const override { return const_cast<char*>(data_.data()); }
  Bytes bytes() const override { return static_cast<Bytes>(data_.size()); }
  int descriptor() const override { return -1; }

 private:
  std::vector<char> data_;
};

}  // namespace

ManualStream::ManualStream(ManualDevice* device, std::string name)
    : device_(device), name_(std::move(name)) {
  device_->streams_.push_back(this);
}

ManualStream::~ManualStream() {
  while (!idle() && device_->Step()) {
  }
  EXPECT_TRUE(idle()) << "stream " << name_ << " was destroyed in a deadlock";
  auto& streams = device_->streams_;
  streams.erase(std::find(streams.begin(), streams.end(), this));
}

absl::Status ManualStream::Copy(void* to, const void* from, Bytes bytes) {
  Run([=] { std::memcpy(to, from, bytes); });
  return absl::OkStatus();
}

absl::Status ManualStream::CopyAll(const std::vector<CopyPart>& parts) {
  absl::Status status = std::exchange(device_->next_copy_all_, absl::OkStatus());
  if (!status.ok()) return status;
  device_->batches_.push_back(absl::StrCat(name_, " ", parts.size()));
  Run([parts] {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      std::memcpy(part->to, part->from, part->bytes);
    }
  });
  return absl::OkStatus();
}

absl::Status ManualStream::Fill(void* to, uint8_t value, Bytes bytes) {
  Run([=] { std::memset(to, value, bytes); });
  return absl::OkStatus();
}

absl::Status ManualStream::WaitFor(std::shared_ptr<const Event> event) {
  if (!event->Done()) queue_.push_back({std::move(event), [] {}});
  return absl::OkStatus();
}

std::shared_ptr<const Event> ManualStream::Record() {
  auto event = std::make_shared<ManualEvent>(device_);
  Run([event] { event->Set(); });
  return event;
}

absl::Status ManualStream::Delay(absl::Duration /*delay*/) {
  return absl::OkStatus();  // Time is what the test makes it.
}

void ManualStream::Run(std::function<void()> work) { queue_.push_back({nullptr, std::move(work)}); }

bool ManualStream::Step() {
  if (queue_.empty()) return false;
  if (queue_.front().wait_for != nullptr && !queue_.front().wait_for->Done()) return false;
  const Work work = std::move(queue_.front());
  queue_.pop_front();
  work.run();
  return true;
}

ManualDevice::ManualDevice(Compute compute, FakeClock* clock)
    : compute_mode_(compute),
      clock_(clock),
      description_{"SIM-manual-0", "manual", "host", 0},
      compute_(std::make_unique<ManualStream>(this, "compute")) {}

void ManualDevice::Shuffle(uint64_t seed) {
  shuffle_ = true;
  random_.seed(seed);
}

bool ManualDevice::Step() {
  std::vector<ManualStream*> order = streams_;
  if (shuffle_) std::shuffle(order.begin(), order.end(), random_);
  std::stable_partition(order.begin(), order.end(),
                        [this](ManualStream* stream) { return stream->name() == preferred_; });
  for (ManualStream* stream : order) {
    if (!stream->Step()) continue;
    ++steps_;
    if (clock_ != nullptr) clock_->Advance(absl::Milliseconds(1));
    return true;
  }
  return false;
}

void ManualDevice::StepUntilDone(const Event& event) {
  while (!event.Done()) {
    if (Step()) continue;
    FAIL() << "deadlock: every lane waits for another";
  }
}

void ManualDevice::StepUntilIdle() {
  while (Step()) {
  }
}

absl::StatusOr<std::unique_ptr<Memory>> ManualDevice::Allocate(Bytes bytes) {
  return std::unique_ptr<Memory>(new HeapMemory(bytes));
}

absl::StatusOr<std::unique_ptr<Memory>> ManualDevice::Map(int /*descriptor*/, Bytes /*bytes*/) {
  return absl::UnimplementedError("a manual device maps nothing");
}

absl::StatusOr<std::unique_ptr<Memory>> ManualDevice::Adopt(int /*descriptor*/, Bytes /*bytes*/) {
  return absl::UnimplementedError("a manual device lends nothing");
}

absl::StatusOr<std::unique_ptr<Stream>> ManualDevice::CreateStream(Direction direction, Tier tier) {
  return std::unique_ptr<Stream>(
      new ManualStream(this, absl::StrCat(DirectionName(direction), "/", TierName(tier))));
}

absl::StatusOr<std::shared_ptr<const Event>> ManualDevice::RecordCompute(void* compute_stream) {
  if (compute_mode_ == Compute::kQueued) return ComputeStream(compute_stream)->Record();
  auto event = std::make_shared<ManualEvent>(this);
  event->Set();
  return std::shared_ptr<const Event>(std::move(event));
}

absl::Status ManualDevice::ComputeWait(void* compute_stream, const Event& event) {
  if (compute_mode_ == Compute::kBlocking) {
    StepUntilDone(event);
    return absl::OkStatus();
  }
  return ComputeStream(compute_stream)
      ->WaitFor(static_cast<const ManualEvent&>(event).shared_from_this());
}

}  // namespace hyperframes
