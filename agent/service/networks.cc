#include "agent/service/networks.h"

#include <unistd.h>

#include <cmath>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/record_file.h"

namespace hyperframes {
namespace {

constexpr size_t kMostDevices = 64;
constexpr size_t kLongestWord = 64;
constexpr double kGiga = 1e9;
constexpr double kMega = 1e6;
constexpr const char* kEthernetType = "1";  // ARPHRD_ETHER.

// The first line of a file of sysfs; empty where it cannot be read (a link that is down).
std::string Line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line.substr(0, kLongestWord);
}

// "4: ACTIVE" without the number.
std::string Word(const std::string& state) {
  const size_t colon = state.find(':');
  const std::string word = colon == std::string::npos ? state : state.substr(colon + 1);
  const std::string trimmed(absl::StripAsciiWhitespace(word));
  return trimmed.empty() ? "unknown" : trimmed;
}

// "400 Gb/sec (4X NDR)" of a fabric, "25000" (Mb/s) of an interface; "-1" and nothing: unknown.
double PromisedBytesPerSecond(const std::string& text, double bits_per_unit) {
  double value = 0;
  const std::string number = text.substr(0, text.find(' '));
  const bool readable = absl::SimpleAtod(number, &value) && value > 0 && std::isfinite(value);
  return readable ? value * bits_per_unit / 8 : 0;
}

}  // namespace

std::vector<NetworkDevice> ReadNetworks(const std::string& sysfs) {
  std::vector<NetworkDevice> found;
  const std::string fabrics = absl::StrCat(sysfs, "/class/infiniband");
  for (const std::string& device : ListDirectory(fabrics)) {
    const std::string ports = absl::StrCat(fabrics, "/", device, "/ports");
    for (const std::string& port : ListDirectory(ports)) {
      const std::string folder = absl::StrCat(ports, "/", port);
      const bool ethernet = Line(folder + "/link_layer") == "Ethernet";
      found.push_back({absl::StrCat(device, "/", port), ethernet ? "roce" : "infiniband",
                       Word(Line(folder + "/state")),
                       PromisedBytesPerSecond(Line(folder + "/rate"), kGiga)});
      if (found.size() == kMostDevices) return found;
    }
  }
  const std::string interfaces = absl::StrCat(sysfs, "/class/net");
  for (const std::string& name : ListDirectory(interfaces)) {
    const std::string folder = absl::StrCat(interfaces, "/", name);
    if (access((folder + "/device").c_str(), F_OK) != 0) continue;
    if (Line(folder + "/type") != kEthernetType) continue;  // IP over InfiniBand is above.
    found.push_back({name, "ethernet", Word(Line(folder + "/operstate")),
                     PromisedBytesPerSecond(Line(folder + "/speed"), kMega)});
    if (found.size() == kMostDevices) return found;
  }
  return found;
}

}  // namespace hyperframes
