// The network devices of this machine, by name, kind and state: what a node-to-node transport could
// use. Read from sysfs; nothing is measured and nothing is opened.
#ifndef HYPERFRAMES_AGENT_SERVICE_NETWORKS_H_
#define HYPERFRAMES_AGENT_SERVICE_NETWORKS_H_

#include <string>
#include <vector>

namespace hyperframes {

struct NetworkDevice {
  std::string name;             // "mlx5_0/1" (device and port), "eth0".
  std::string kind;             // "infiniband", "roce" or "ethernet".
  std::string state;            // As the kernel words it: "ACTIVE", "DOWN", "up", "unknown".
  double bytes_per_second = 0;  // What it promises; 0: it does not say.
};

// Loopback is left out, as are interfaces without hardware behind them (bridges, tunnels). At most
// 64, sorted by name; empty where `sysfs` shows none.
std::vector<NetworkDevice> ReadNetworks(const std::string& sysfs = "/sys");

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_NETWORKS_H_
