#include "client/c/machine.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "agent/device/link_probe.h"
#include "agent/device/path_probe.h"
#include "client/c/boundary.h"
#include "client/c/hyperframes.h"
#include "client/c/json_options.h"
#include "client/c/unfit_collectives.h"
#include "client/c/unfit_links.h"
#include "client/cpp/message_json.h"
#include "client/cpp/retry.h"
#include "client/doctor/host_facts.h"
#include "client/doctor/nvml_facts.h"
#include "client/doctor/path_facts.h"
#include "common/host_limits.h"
#include "common/random_id.h"
#include "common/status_macros.h"
#include "hyperframes/v1/plan.pb.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kAgentPatience = absl::Seconds(10);
constexpr absl::Duration kProbeTime = absl::Seconds(1);  // For all links together, about.
constexpr Bytes kLargeProbeOnCuda = 64 * kMiB;           // NVLink is at a quarter less with 16 MiB.

std::string Environment(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? fallback : value;
}

absl::StatusOr<HostDeviceOptions> ReadDevice(const nlohmann::json& element,
                                             const std::string& what) {
  HostDeviceOptions device;
  double latency_s = 0;
  JsonOptions reader(absl::StrCat("options_json: ", what));
  reader.String("uuid", &device.uuid);
  reader.String("name", &device.name);
  reader.Size("total_bytes", &device.total_bytes);
  reader.Size("peer_bandwidth", &device.peer_bandwidth);
  reader.Size("host_bandwidth", &device.host_bandwidth);
  reader.Number("latency_s", &latency_s);
  reader.Number("compute_slowdown", &device.compute_slowdown);
  HF_RETURN_IF_ERROR(reader.Read(element));
  if (device.uuid.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("options_json: ", what, " has no uuid"));
  }
  device.latency = absl::Seconds(latency_s);
  return device;
}

}  // namespace

struct Machine::Options {
  std::string backend;
  std::string node;
  std::vector<HostDeviceOptions> devices;
  Bytes host_bytes = -1;
  int64_t gpu_index = -1;
  CudaMachineOptions cuda;
};

absl::StatusOr<Machine::Options> Machine::ReadOptions(const std::string& options_json) {
  Options options;
  options.node = Environment("HYPERFRAMES_NODE", "local");
  options.backend = Environment("HYPERFRAMES_BACKEND", "host");
  JsonOptions reader("options_json");
  reader.String("backend", &options.backend);
  const auto read = [&](const nlohmann::json& element, const std::string& what) -> absl::Status {
    HF_ASSIGN_OR_RETURN(HostDeviceOptions device, ReadDevice(element, what));
    options.devices.push_back(std::move(device));
    return absl::OkStatus();
  };
  reader.Array("devices", read);
  reader.Size("host_bytes", &options.host_bytes);
  reader.Integer("gpu_index", &options.gpu_index);
  reader.Size("reserve_bytes", &options.cuda.reserve_bytes);
  reader.Bool("measure", &options.cuda.measure);
  HF_RETURN_IF_ERROR(reader.Parse(options_json));
  if (options.backend != "host" && options.backend != "cuda") {
    return absl::UnimplementedError(absl::StrCat("options_json: there is no backend \"",
                                                 options.backend.substr(0, 64),
                                                 "\"; there are \"host\" and \"cuda\""));
  }
  const bool simulates = options.backend == "host";
  if (!simulates && !options.devices.empty()) {
    return absl::InvalidArgumentError(
        "options_json: \"devices\" describes simulated GPUs, and the backend is \"cuda\"");
  }
  const std::string described = Environment("HYPERFRAMES_HOST_DEVICES", "");
  if (simulates && options.devices.empty() && !described.empty()) {
    HF_ASSIGN_OR_RETURN(options.devices, ParseHostDevices(described, options.node));
  }
  return options;
}

absl::StatusOr<std::shared_ptr<Machine>> Machine::Open(const std::string& options_json) {
  HF_ASSIGN_OR_RETURN(Options options, ReadOptions(options_json));
  std::shared_ptr<Machine> machine(new Machine());
  HF_RETURN_IF_ERROR(machine->OpenDevices(std::move(options)));
  HF_ASSIGN_OR_RETURN(machine->counters_, CountersWriter::Create());
  return machine;
}

absl::Status Machine::OpenDevices(Options options) {
  node_ = options.node;
  if (options.host_bytes > 0) {
    const HostBudget budget =
        FitHostBudget(options.host_bytes, "HYPERFRAMES_HOST_BYTES", ReadHostLimits());
    options.host_bytes = budget.bytes;
    host_note_ = budget.sentence;
  }
  if (options.backend == "cuda") {
    options.cuda.node = options.node;
    options.cuda.host_bytes = options.host_bytes;
    HF_ASSIGN_OR_RETURN(cuda_, CudaMachine::Open(options.cuda));
    gpus_ = cuda_->gpus();
    host_ = cuda_->host();
  } else {
    HostMachineOptions simulated;
    simulated.node = options.node;
    simulated.devices = std::move(options.devices);
    simulated.host_bytes = options.host_bytes;
    HF_ASSIGN_OR_RETURN(simulated_, HostMachine::Create(std::move(simulated)));
    for (const auto& device : simulated_->devices()) gpus_.push_back(device.get());
    host_ = simulated_->host();
  }
  if (options.gpu_index < 0) return absl::OkStatus();
  if (options.gpu_index >= static_cast<int64_t>(gpus_.size())) {
    return absl::InvalidArgumentError(absl::StrCat("options_json: \"gpu_index\" is ",
                                                   options.gpu_index, ", and there are ",
                                                   gpus_.size(), " GPUs"));
  }
  compute_ = gpus_[options.gpu_index];
  return absl::OkStatus();
}

std::string Machine::KnownUuids() const {
  std::vector<std::string> known;
  for (const Device* gpu : gpus_) known.push_back(gpu->description().uuid);
  known.push_back(host_->description().uuid);
  return absl::StrJoin(known, ", ");
}

absl::StatusOr<Device*> Machine::Find(const std::string& uuid) const {
  if (host_->description().uuid == uuid) return host_;
  for (Device* gpu : gpus_) {
    if (gpu->description().uuid == uuid) return gpu;
  }
  if (cuda_ != nullptr) {
    for (const std::string& hidden : cuda_->HiddenGpus()) {
      if (hidden != uuid) continue;
      return absl::NotFoundError(absl::StrCat(
          uuid,
          " is on this node, but CUDA_VISIBLE_DEVICES hides it from this process: without an ",
          "agent a process lends only from GPUs that it sees; make it visible, or run hfagent"));
    }
  }
  return absl::NotFoundError(absl::StrCat("no device \"", uuid.substr(0, 128),
                                          "\" in this process; there are ", KnownUuids()));
}

absl::StatusOr<Device*> Machine::ComputeDevice(const std::string& uuid) const {
  if (!uuid.empty()) return Find(uuid);
  if (compute_ != nullptr) return compute_;
  const std::string given = Environment("HYPERFRAMES_GPU", "");
  if (!given.empty()) return Find(given);
  if (gpus_.size() == 1) return gpus_.front();
  return absl::InvalidArgumentError(absl::StrCat("options_json: \"gpu\" is missing, and there are ",
                                                 gpus_.size(), " GPUs to choose from"));
}

v1::DeviceProfile Machine::Profile(const Device& device) const {
  v1::DeviceProfile profile;
  profile.set_uuid(device.description().uuid);
  profile.set_node(node_);
  profile.set_is_host(&device == host_);
  profile.set_usable_bytes(device.description().total_bytes);
  const bool is_cuda = device.description().backend == "cuda";
  profile.set_lendable_bytes(is_cuda ? cuda_->LendableBytes(device) : device.free_bytes());
  return profile;
}

doctor::PathFacts Machine::MeasurePath(Device* from, Device* to, absl::Duration time_limit) const {
  const bool to_host = to == host_;
  doctor::PathFacts path;
  path.kind = to_host ? doctor::PathKind::kToHost : doctor::PathKind::kPeer;
  path.from = from->description().uuid;
  path.to = to->description().uuid;
  if (cuda_ == nullptr) {
    path.link = "simulated";
    path.simulated_promise = doctor::SimulatedPromise(*simulated_, *from, path.kind);
  } else {
    path.link = to_host ? "pcie" : cuda_->LinkKind(*from, *to);
    if (!to_host && !cuda_->CanReach(*from, *to)) {
      path.status = absl::FailedPreconditionError("CUDA has no peer access between these GPUs");
      return path;
    }
  }
  LinkProbeOptions options;
  options.time_limit = time_limit;
  if (cuda_ != nullptr) options.large_bytes = kLargeProbeOnCuda;
  const absl::StatusOr<LinkMeasurement> measured =
      ProbePath(from, to, Direction::kOut, to_host ? Tier::kHost : Tier::kPeer, options);
  path.status = measured.status();
  path.out_of_time = absl::IsOutOfRange(path.status);  // Too full to measure with.
  if (measured.ok()) {
    path.bytes_per_second = measured->bytes_per_second;
    path.latency = measured->latency;
  }
  return path;
}

v1::LinkProfile Machine::Link(const doctor::PathFacts& path) const {
  v1::LinkProfile link;
  link.set_from(path.from);
  link.set_to(path.to);
  link.set_bytes_per_second(path.bytes_per_second);
  link.set_latency_s(absl::ToDoubleSeconds(path.latency));
  link.set_kind(path.link);
  // A simulated device says what its copies cost; of a real one the job's own profile does.
  if (simulated_ != nullptr) {
    for (const auto& device : simulated_->devices()) {
      if (device->options().uuid != path.from) continue;
      link.set_compute_slowdown(device->options().copy_slowdown);
    }
  }
  // All of a node's GPUs share its way into host memory.
  if (path.kind == doctor::PathKind::kToHost) link.set_shared_group(path.to);
  return link;
}

absl::StatusOr<std::vector<doctor::PathFacts>> Machine::MeasurePaths() {
  std::vector<Device*> measured_from = gpus_;
  if (cuda_ != nullptr) {
    HF_ASSIGN_OR_RETURN(Device * compute, ComputeDevice(""));
    measured_from = {compute};
  }
  const absl::Duration each =
      std::min(kProbeTime / static_cast<int64_t>(measured_from.size() * gpus_.size()),
               absl::Milliseconds(250));
  std::vector<doctor::PathFacts> paths;
  for (Device* from : measured_from) {
    std::vector<Device*> targets = gpus_;
    targets.push_back(host_);
    for (Device* to : targets) {
      // Host memory that may not be lent needs no way to it.
      const bool none = to == host_ && host_->description().total_bytes == 0;
      if (from != to && !none) paths.push_back(MeasurePath(from, to, each));
    }
  }
  return paths;
}

absl::StatusOr<std::string> Machine::Describe() {
  std::vector<std::string> devices;
  for (const Device* device : gpus_) {
    HF_ASSIGN_OR_RETURN(std::string json, WriteMessage(Profile(*device)));
    devices.push_back(std::move(json));
  }
  HF_ASSIGN_OR_RETURN(std::string host_json, WriteMessage(Profile(*host_)));
  devices.push_back(std::move(host_json));

  HF_ASSIGN_OR_RETURN(std::vector<doctor::PathFacts> paths, MeasurePaths());
  std::vector<std::string> links;
  for (const doctor::PathFacts& path : paths) {
    if (!path.status.ok()) continue;
    HF_ASSIGN_OR_RETURN(std::string json, WriteMessage(Link(path)));
    links.push_back(std::move(json));
  }
  const std::string note = nlohmann::json(host_note_).dump();
  return absl::StrCat("{\"host_note\":", note, ",\"devices\":[", absl::StrJoin(devices, ","),
                      "],\"links\":[", absl::StrJoin(links, ","), "],\"unfit_links\":",
                      UnfitLinksJson(std::move(paths), /*real=*/cuda_ != nullptr), "}");
}

double Machine::SimulatedCollectivePromise(const std::vector<std::string>& gpus) const {
  Bytes least = 0;
  for (const std::string& uuid : gpus) {
    const auto found =
        std::find_if(simulated_->devices().begin(), simulated_->devices().end(),
                     [&uuid](const auto& device) { return device->options().uuid == uuid; });
    if (found == simulated_->devices().end()) return 0;  // Another worker's, or another node's.
    const Bytes promised = (*found)->options().collective_promise;
    if (promised == 0) return 0;
    least = least == 0 ? promised : std::min(least, promised);
  }
  return static_cast<double>(least);
}

absl::StatusOr<std::string> Machine::JudgeCollectives(const std::string& measured_json) const {
  HF_ASSIGN_OR_RETURN(const JobCollectives job, ReadJobCollectives(measured_json));
  doctor::Facts facts;
  doctor::HostFactSource().Collect(absl::InfiniteFuture(), &facts);
  if (cuda_ == nullptr) {
    return JudgeSimulatedCollectives(job, std::move(facts), SimulatedCollectivePromise(job.gpus));
  }
  doctor::NvmlFactSource().Collect(absl::InfiniteFuture(), &facts);
  return JudgeRealCollectives(job, std::move(facts));
}

absl::StatusOr<DescriptorClient*> Machine::Agent(const std::string& socket_path) {
  MutexLock lock(&mutex_);
  std::unique_ptr<DescriptorClient>& agent = agents_[socket_path];
  if (agent != nullptr) return agent.get();
  DescriptorClientOptions options;
  options.socket_path = socket_path;
  options.worker_id = Environment("HYPERFRAMES_WORKER_ID", "");
  options.job_id = Environment("HYPERFRAMES_JOB_ID", "");
  options.counters_descriptor = counters_->descriptor();
  RetryEnvironment environment;
  environment.sleep = [](absl::Duration wait) { absl::SleepFor(wait); };
  environment.seed = RandomIncarnation();
  const auto connect = [&](absl::Duration) -> absl::Status {
    HF_ASSIGN_OR_RETURN(agent, DescriptorClient::Connect(options));
    return absl::OkStatus();
  };
  HF_RETURN_IF_ERROR(
      CallWithRetries(RetryPolicy(), environment, /*idempotent=*/true, kAgentPatience, connect));
  return agent.get();
}

absl::Status Machine::ShareCounters() {
  const std::string socket_path = Environment("HYPERFRAMES_WORKER_SOCKET", "");
  if (socket_path.empty()) return absl::OkStatus();
  return Agent(socket_path).status();
}

}  // namespace hyperframes

using hyperframes::Guarded;
using hyperframes::RequireArgument;

extern "C" {

hf_code hf_machine_open(const char* options_json, hf_machine** machine) {
  return Guarded("hf_machine_open", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(machine, "machine"));
    HF_ASSIGN_OR_RETURN(auto opened,
                        hyperframes::Machine::Open(options_json == nullptr ? "" : options_json));
    *machine = new hf_machine{std::move(opened)};
    return absl::OkStatus();
  });
}

hf_code hf_machine_describe(hf_machine* machine, char** machine_json) {
  return Guarded("hf_machine_describe", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(machine, "machine"));
    HF_RETURN_IF_ERROR(RequireArgument(machine_json, "machine_json"));
    HF_ASSIGN_OR_RETURN(const std::string json, machine->machine->Describe());
    return hyperframes::CopyOut(json, machine_json);
  });
}

hf_code hf_judge_collectives(hf_machine* machine, const char* measured_json, char** verdict_json) {
  return Guarded("hf_judge_collectives", [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(RequireArgument(machine, "machine"));
    HF_RETURN_IF_ERROR(RequireArgument(measured_json, "measured_json"));
    HF_RETURN_IF_ERROR(RequireArgument(verdict_json, "verdict_json"));
    HF_ASSIGN_OR_RETURN(const std::string json, machine->machine->JudgeCollectives(measured_json));
    return hyperframes::CopyOut(json, verdict_json);
  });
}

void hf_machine_close(hf_machine* machine) {
  // In a forked child the threads to join are the parent's.
  if (hyperframes::ForkedAfterUse()) return;
  delete machine;
}

}  // extern "C"
