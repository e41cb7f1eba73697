#include "agent/arena/lent_gpus.h"

#include <glog/logging.h>

#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/arena/lender.h"
#include "agent/device/cuda/nvml.h"
#include "agent/device/host/host_machine.h"
#include "common/bounded_command.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostGpus = 64;
constexpr absl::Duration kLook = absl::Milliseconds(500);  // The longest that an end waits.

absl::Status CopiesNothing() {
  return absl::UnimplementedError("an agent only lends a GPU: its borrowers copy");
}

// Starts a Lender when memory is first wanted, and lets it end with the last that it made.
class LenderKeeper {
 public:
  explicit LenderKeeper(LenderOptions options) : options_(std::move(options)) {}
  std::shared_ptr<Lender> Get() {
    MutexLock lock(&mutex_);
    std::shared_ptr<Lender> lender = lender_.lock();
    if (lender == nullptr) lender_ = lender = std::make_shared<Lender>(options_);
    return lender;
  }

 private:
  const LenderOptions options_;
  Mutex mutex_;
  std::weak_ptr<Lender> lender_ HF_GUARDED_BY(mutex_);
};

class LentMemory final : public Memory {
 public:
  LentMemory(std::shared_ptr<Lender> lender, UniqueFd descriptor, Bytes bytes)
      : lender_(std::move(lender)), descriptor_(std::move(descriptor)), bytes_(bytes) {}
  char* data() const override { return nullptr; }
  Bytes bytes() const override { return bytes_; }
  int descriptor() const override { return descriptor_.get(); }

 private:
  const std::shared_ptr<Lender> lender_;  // Its process stays while more may be wanted soon.
  const UniqueFd descriptor_;
  const Bytes bytes_;
};

class LentGpu final : public Device {
 public:
  LentGpu(DeviceDescription description, const std::string& unusable, LenderKeeper* lenders)
      : description_(std::move(description)),
        lenders_(lenders),
        usable_(unusable.empty() ? absl::OkStatus() : absl::UnimplementedError(unusable)) {}

  const DeviceDescription& description() const override { return description_; }
  absl::Status usable() const {
    MutexLock lock(&mutex_);
    return usable_;
  }
  void Fail(uint64_t xid) {
    MutexLock lock(&mutex_);
    usable_ = absl::FailedPreconditionError(absl::StrCat(
        "GPU ", description_.uuid, " (", description_.name, ") has reported Xid ", xid,
        ": see dmesg and nvidia-smi -q, reset or replace it, and start this node's agent again"));
    LOG(ERROR) << usable_.message();
  }

  absl::StatusOr<std::unique_ptr<Memory>> Allocate(Bytes bytes) override {
    HF_RETURN_IF_ERROR(usable());
    std::shared_ptr<Lender> lender = lenders_->Get();
    HF_ASSIGN_OR_RETURN(UniqueFd descriptor, lender->Allocate(description_.uuid, bytes));
    return std::unique_ptr<Memory>(new LentMemory(std::move(lender), std::move(descriptor), bytes));
  }
  absl::StatusOr<std::unique_ptr<Memory>> Adopt(int descriptor, Bytes bytes) override {
    UniqueFd owned(descriptor);
    std::shared_ptr<Lender> lender = lenders_->Get();
    const absl::Status checked = lender->Check(description_.uuid, owned.get(), bytes);
    if (absl::IsInvalidArgument(checked)) return checked;
    // A driver that cannot look now is no reason to take a running job's memory away.
    if (!checked.ok()) LOG(WARNING) << "adopted without a look: " << checked.message();
    return std::unique_ptr<Memory>(new LentMemory(std::move(lender), std::move(owned), bytes));
  }
  absl::StatusOr<std::unique_ptr<Memory>> Map(int descriptor, Bytes /*bytes*/) override {
    UniqueFd(descriptor).reset();
    return CopiesNothing();
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(Direction, Tier) override {
    return CopiesNothing();
  }
  absl::StatusOr<std::shared_ptr<const Event>> RecordCompute(void*) override {
    return CopiesNothing();
  }
  absl::Status ComputeWait(void*, const Event&) override { return CopiesNothing(); }
  Bytes free_bytes() const override {
    const absl::StatusOr<const Nvml*> nvml = Nvml::Get();
    if (!nvml.ok()) return description_.total_bytes;
    const absl::StatusOr<Bytes> free = (*nvml)->FreeBytes(description_.uuid);
    return free.ok() ? *free : description_.total_bytes;
  }

 private:
  const DeviceDescription description_;
  LenderKeeper* const lenders_;
  mutable Mutex mutex_;
  absl::Status usable_ HF_GUARDED_BY(mutex_);
};

class LentGpus final : public GpuMachine {
 public:
  explicit LentGpus(const LentGpusOptions& options)
      : lenders_(LenderOptions{{options.program, "lend"}}) {}
  ~LentGpus() override {
    stopping_ = true;
    if (watcher_.joinable()) watcher_.join();
  }

  absl::Status Fill(const LentGpusOptions& options, const std::string& lines);

  std::string backend() const override { return "cuda"; }
  const std::vector<Device*>& gpus() const override { return gpus_; }
  Device* host() const override { return host_.get(); }
  int IndexOf(const Device& gpu) const override {
    const auto found = index_.find(gpu.description().uuid);
    return found == index_.end() ? -1 : found->second;
  }
  absl::Status CheckUsable(const Device& gpu) const override {
    return static_cast<const LentGpu&>(gpu).usable();
  }
  // What measures them knows better.
  bool CanReach(const Device& /*from*/, const Device& /*to*/) const override { return true; }
  std::string LinkKind(const Device& /*from*/, const Device& /*to*/) const override { return ""; }
  std::map<std::string, std::string> WorkerVariables(
      const Device& own, const std::vector<std::string>& visible) const override {
    return CudaWorkerVariables(own, visible);
  }

 private:
  // Until the end, or until NVML tells no more.
  void Watch(FaultWatch* faults) {
    while (!stopping_) {
      const absl::StatusOr<GpuFault> fault = faults->Wait(kLook);
      if (!fault.ok()) {
        LOG(WARNING) << "a GPU that fails is no longer noticed: " << fault.status().message();
        return;
      }
      for (const auto& gpu : owned_) {
        if (gpu->description().uuid == fault->uuid) gpu->Fail(fault->xid);
      }
    }
  }

  LenderKeeper lenders_;
  std::vector<std::unique_ptr<LentGpu>> owned_;
  std::vector<Device*> gpus_;
  std::map<std::string, int> index_;  // By UUID, as NVML counts.
  std::unique_ptr<HostDevice> host_;
  std::atomic<bool> stopping_{false};
  std::thread watcher_;  // Last.
};

// One line of WriteGpuLines.
absl::Status ReadLine(const std::string& line, DeviceDescription* gpu, std::string* unusable) {
  const Json read = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto is = [&read](const char* key, Json::value_t type) {
    return read.is_object() && read.contains(key) && read[key].type() == type;
  };
  if (is("code", Json::value_t::number_unsigned) && is("message", Json::value_t::string)) {
    return absl::Status(static_cast<absl::StatusCode>(read["code"].get<int>()),
                        read["message"].get<std::string>());
  }
  if (!is("uuid", Json::value_t::string) || !is("name", Json::value_t::string) ||
      !is("total_bytes", Json::value_t::number_unsigned) ||
      !is("unusable", Json::value_t::string)) {
    return absl::UnavailableError(absl::StrCat("no GPU: '", line.substr(0, 80), "'"));
  }
  *gpu = {read["uuid"], read["name"], "cuda", read["total_bytes"].get<Bytes>()};
  *unusable = read["unusable"];
  return absl::OkStatus();
}

absl::Status LentGpus::Fill(const LentGpusOptions& options, const std::string& lines) {
  const std::vector<std::string> split = absl::StrSplit(lines, '\n', absl::SkipEmpty());
  for (const std::string& line : split) {
    DeviceDescription gpu;
    std::string unusable;
    HF_RETURN_IF_ERROR(ReadLine(line, &gpu, &unusable));
    if (owned_.size() == kMostGpus) break;
    owned_.push_back(std::make_unique<LentGpu>(std::move(gpu), unusable, &lenders_));
    gpus_.push_back(owned_.back().get());
  }
  if (gpus_.empty()) return absl::UnavailableError(absl::StrCat(options.program, " names no GPU"));
  if (const absl::StatusOr<const Nvml*> nvml = Nvml::Get(); nvml.ok()) {
    for (const NodeGpu& gpu : (*nvml)->List()) index_[gpu.uuid] = gpu.index;
    absl::StatusOr<std::unique_ptr<FaultWatch>> watch = (*nvml)->WatchFaults();
    if (watch.ok()) {
      watcher_ = std::thread([this, faults = *std::move(watch)] { Watch(faults.get()); });
    } else {
      LOG(WARNING) << "a GPU that fails is not noticed: " << watch.status().message();
    }
  } else {
    LOG(WARNING) << "other processes' use of GPUs is not seen: " << nvml.status().message();
  }
  HostDeviceOptions host;
  host.uuid = absl::StrCat("host:", options.node);
  host.total_bytes = options.host_bytes >= 0 ? options.host_bytes : HalfOfAvailableMemory();
  HF_ASSIGN_OR_RETURN(host_, HostDevice::Create(std::move(host)));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuMachine>> OpenLentGpus(const LentGpusOptions& options) {
  BoundedCommand command;
  command.arguments = {options.program, "gpus"};
  command.deadline = options.patience;
  std::string lines;
  const absl::Status ended = RunBounded(command, &lines);
  if (!ended.ok()) {
    return absl::UnavailableError(
        absl::StrCat(ended.message(),
                     ": it has to say which GPUs there are; put it beside hfagent, or give "
                     "--backend=host"));
  }
  auto machine = std::make_unique<LentGpus>(options);
  HF_RETURN_IF_ERROR(machine->Fill(options, lines));
  return std::unique_ptr<GpuMachine>(std::move(machine));
}

std::string WriteGpuLines(const absl::StatusOr<const GpuMachine*>& machine) {
  std::string text;
  const auto add = [&text](const Json& line) {
    absl::StrAppend(&text, line.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
  };
  if (!machine.ok()) {
    add({{"code", static_cast<unsigned>(machine.status().code())},
         {"message", std::string(machine.status().message())}});
    return text;
  }
  for (const Device* const gpu : (*machine)->gpus()) {
    const DeviceDescription& description = gpu->description();
    add({{"uuid", description.uuid},
         {"name", description.name},
         {"total_bytes", static_cast<uint64_t>(description.total_bytes)},
         {"unusable", std::string((*machine)->CheckUsable(*gpu).message())}});
  }
  return text;
}

}  // namespace hyperframes
