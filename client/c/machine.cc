#include "client/c/machine.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "agent/device/link_probe.h"
#include "client/c/boundary.h"
#include "client/c/hyperframes.h"
#include "client/c/json_options.h"
#include "client/cpp/message_json.h"
#include "client/cpp/retry.h"
#include "common/random_id.h"
#include "common/status_macros.h"
#include "hyperframes/v1/plan.pb.h"

namespace hyperframes {
namespace {

constexpr absl::Duration kAgentPatience = absl::Seconds(10);
constexpr absl::Duration kProbeTime = absl::Seconds(1);  // For all links together, about.
constexpr Bytes kSmallestProbe = 64 * kKiB;

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

absl::StatusOr<HostMachineOptions> ReadMachine(const std::string& options_json) {
  HostMachineOptions options;
  options.node = Environment("HYPERFRAMES_NODE", "local");
  std::string backend = Environment("HYPERFRAMES_BACKEND", "host");
  JsonOptions reader("options_json");
  reader.String("backend", &backend);
  const auto read = [&](const nlohmann::json& element, const std::string& what) -> absl::Status {
    HF_ASSIGN_OR_RETURN(HostDeviceOptions device, ReadDevice(element, what));
    options.devices.push_back(std::move(device));
    return absl::OkStatus();
  };
  reader.Array("devices", read);
  reader.Size("host_bytes", &options.host_bytes);
  HF_RETURN_IF_ERROR(reader.Parse(options_json));
  if (backend != "host") {
    return absl::UnimplementedError(absl::StrCat("options_json: backend \"", backend.substr(0, 64),
                                                 "\" is not in this build; there is \"host\""));
  }
  const std::string described = Environment("HYPERFRAMES_HOST_DEVICES", "");
  if (options.devices.empty() && !described.empty()) {
    HF_ASSIGN_OR_RETURN(options.devices, ParseHostDevices(described, options.node));
  }
  return options;
}

v1::DeviceProfile Profile(const HostDevice& device, const std::string& node, bool is_host) {
  v1::DeviceProfile profile;
  profile.set_uuid(device.description().uuid);
  profile.set_node(node);
  profile.set_is_host(is_host);
  profile.set_usable_bytes(device.description().total_bytes);
  profile.set_lendable_bytes(device.free_bytes());
  return profile;
}

// The path from the GPU `from` into memory of `to`, or nothing where either has no room to measure
// with.
absl::StatusOr<std::vector<v1::LinkProfile>> MeasureLink(HostDevice* from, HostDevice* to,
                                                         Tier tier, absl::Duration time_limit) {
  const Bytes room = std::min(from->free_bytes(), to->free_bytes());
  LinkProbeOptions options;
  options.time_limit = time_limit;
  options.large_bytes = std::min(options.large_bytes, room / 4 / kSlotAlignment * kSlotAlignment);
  if (options.large_bytes < kSmallestProbe) return std::vector<v1::LinkProfile>();
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> source, from->Allocate(options.large_bytes));
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> sink, to->Allocate(options.large_bytes));
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream,
                      from->CreateStream(Direction::kOut, tier));
  HF_ASSIGN_OR_RETURN(const LinkMeasurement measured,
                      ProbeLink(stream.get(), *sink, *source, options));
  v1::LinkProfile link;
  link.set_from(from->description().uuid);
  link.set_to(to->description().uuid);
  link.set_bytes_per_second(measured.bytes_per_second);
  link.set_latency_s(absl::ToDoubleSeconds(measured.latency));
  link.set_kind("simulated");
  // All of a node's GPUs share its way into host memory.
  if (tier == Tier::kHost) link.set_shared_group(to->description().uuid);
  return std::vector<v1::LinkProfile>{link};
}

}  // namespace

absl::StatusOr<std::shared_ptr<Machine>> Machine::Open(const std::string& options_json) {
  HF_ASSIGN_OR_RETURN(HostMachineOptions options, ReadMachine(options_json));
  const std::string node = options.node;
  HF_ASSIGN_OR_RETURN(std::unique_ptr<HostMachine> host, HostMachine::Create(std::move(options)));
  HF_ASSIGN_OR_RETURN(std::unique_ptr<CountersWriter> counters, CountersWriter::Create());
  return std::shared_ptr<Machine>(new Machine(node, std::move(host), std::move(counters)));
}

Machine::Machine(std::string node, std::unique_ptr<HostMachine> host,
                 std::unique_ptr<CountersWriter> counters)
    : node_(std::move(node)), host_(std::move(host)), counters_(std::move(counters)) {}

absl::StatusOr<Device*> Machine::Find(const std::string& uuid) const {
  if (Device* device = host_->Find(uuid)) return device;
  std::vector<std::string> known;
  for (const auto& device : host_->devices()) known.push_back(device->description().uuid);
  known.push_back(host_->host()->description().uuid);
  return absl::NotFoundError(absl::StrCat("no device \"", uuid.substr(0, 128),
                                          "\" in this process; there are ",
                                          absl::StrJoin(known, ", ")));
}

absl::StatusOr<Device*> Machine::ComputeDevice(const std::string& uuid) const {
  const std::string wanted = uuid.empty() ? Environment("HYPERFRAMES_GPU", "") : uuid;
  if (!wanted.empty()) return Find(wanted);
  if (host_->devices().size() == 1) return host_->devices().front().get();
  return absl::InvalidArgumentError(absl::StrCat("options_json: \"gpu\" is missing, and there are ",
                                                 host_->devices().size(), " GPUs to choose from"));
}

absl::StatusOr<std::string> Machine::Describe() {
  std::vector<std::string> devices;
  std::vector<std::string> links;
  const auto& gpus = host_->devices();
  const auto add_device = [&](const HostDevice& device, bool is_host) -> absl::Status {
    HF_ASSIGN_OR_RETURN(std::string json, WriteMessage(Profile(device, node_, is_host)));
    devices.push_back(std::move(json));
    return absl::OkStatus();
  };
  const absl::Duration each = kProbeTime / static_cast<int64_t>(gpus.size() * gpus.size());
  const auto add_link = [&](HostDevice* from, HostDevice* to, Tier tier) -> absl::Status {
    HF_ASSIGN_OR_RETURN(const std::vector<v1::LinkProfile> measured,
                        MeasureLink(from, to, tier, std::min(each, absl::Milliseconds(250))));
    for (const v1::LinkProfile& link : measured) {
      HF_ASSIGN_OR_RETURN(std::string json, WriteMessage(link));
      links.push_back(std::move(json));
    }
    return absl::OkStatus();
  };
  for (const auto& gpu : gpus) HF_RETURN_IF_ERROR(add_device(*gpu, /*is_host=*/false));
  HF_RETURN_IF_ERROR(add_device(*host_->host(), /*is_host=*/true));
  for (const auto& from : gpus) {
    for (const auto& to : gpus) {
      if (from != to) HF_RETURN_IF_ERROR(add_link(from.get(), to.get(), Tier::kPeer));
    }
    HF_RETURN_IF_ERROR(add_link(from.get(), host_->host(), Tier::kHost));
  }
  return absl::StrCat("{\"devices\":[", absl::StrJoin(devices, ","), "],\"links\":[",
                      absl::StrJoin(links, ","), "]}");
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

void hf_machine_close(hf_machine* machine) {
  // In a forked child the threads to join are the parent's.
  if (hyperframes::ForkedAfterUse()) return;
  delete machine;
}

}  // extern "C"
