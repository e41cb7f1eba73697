#include "agent/device/conformance_backends.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/device/borrowed_memory.h"
#include "agent/device/cuda/cuda_machine.h"
#include "agent/device/cuda/default_stream.h"
#include "agent/device/host/host_machine.h"
#include "common/status_macros.h"
#include "gtest/gtest.h"

namespace hyperframes {
namespace {

class HostBackend final : public ConformanceBackend {
 public:
  explicit HostBackend(std::unique_ptr<HostMachine> machine) : machine_(std::move(machine)) {}

  Device* compute() override { return machine_->devices()[0].get(); }
  Device* peer() override { return machine_->devices()[1].get(); }
  Device* host() override { return machine_->host(); }

  void FillOnCompute(void* data, char value, Bytes bytes) override {
    std::memset(data, value, bytes);
  }
  std::vector<char> ReadOnCompute(const void* data, Bytes bytes) override {
    const auto* begin = static_cast<const char*>(data);
    return std::vector<char>(begin, begin + bytes);
  }

 private:
  const std::unique_ptr<HostMachine> machine_;
};

class CudaBackend final : public ConformanceBackend {
 public:
  explicit CudaBackend(std::unique_ptr<CudaMachine> machine) : machine_(std::move(machine)) {}

  Device* compute() override { return machine_->gpus().front(); }
  Device* peer() override { return machine_->gpus().back(); }
  Device* host() override { return machine_->host(); }

  void FillOnCompute(void* data, char value, Bytes bytes) override {
    EXPECT_EQ(DefaultStreamFill(*compute(), data, value, bytes), absl::OkStatus());
  }
  std::vector<char> ReadOnCompute(const void* data, Bytes bytes) override {
    std::vector<char> read(bytes);
    EXPECT_EQ(DefaultStreamRead(*compute(), data, read.data(), bytes), absl::OkStatus());
    return read;
  }

 private:
  const std::unique_ptr<CudaMachine> machine_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ConformanceBackend>> ConformanceBackend::Open(
    const std::string& name) {
  if (name == "cuda") {
    CudaMachineOptions options;
    options.host_bytes = kGiB;
    options.measure = true;
    HF_ASSIGN_OR_RETURN(std::unique_ptr<CudaMachine> machine, CudaMachine::Open(options));
    return std::unique_ptr<ConformanceBackend>(new CudaBackend(std::move(machine)));
  }
  HostMachineOptions options;
  HF_ASSIGN_OR_RETURN(options.devices, ParseHostDevices("2 x 256MiB"));
  options.host_bytes = 256 * kMiB;
  HF_ASSIGN_OR_RETURN(std::unique_ptr<HostMachine> machine, HostMachine::Create(options));
  return std::unique_ptr<ConformanceBackend>(new HostBackend(std::move(machine)));
}

std::unique_ptr<Memory> ConformanceBackend::Borrow(Device* lender, Bytes bytes) {
  absl::StatusOr<std::unique_ptr<Memory>> memory = BorrowMemory(compute(), lender, bytes);
  EXPECT_EQ(memory.status(), absl::OkStatus());
  if (!memory.ok()) return nullptr;
  EXPECT_EQ((*memory)->WaitUntilUsable(), absl::OkStatus());
  return *std::move(memory);
}

std::unique_ptr<Stream> ConformanceBackend::CreateStream(Direction direction, Tier tier) {
  absl::StatusOr<std::unique_ptr<Stream>> stream = compute()->CreateStream(direction, tier);
  EXPECT_EQ(stream.status(), absl::OkStatus());
  return stream.ok() ? *std::move(stream) : nullptr;
}

std::vector<char> ConformanceBackend::Read(Stream* after, const void* data, Bytes bytes) {
  const std::unique_ptr<Memory> window = Borrow(host(), bytes);
  if (window == nullptr) return {};
  EXPECT_EQ(after->Copy(window->data(), data, bytes), absl::OkStatus());
  after->Record()->Synchronize();
  return std::vector<char>(window->data(), window->data() + bytes);
}

}  // namespace hyperframes
