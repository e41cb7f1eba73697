#include "client/doctor/promises.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace doctor {
namespace {

struct NvLink {
  int generation;
  double bytes_per_second;
};

// NVIDIA's data sheets, halved: they count both directions. P100 4 x 20 GB/s, V100 6 x 25, A100
// 12 x 25, H100 18 x 25, B200 18 x 50.
NvLink NvLinkOf(int nvml_version) {
  switch (nvml_version) {
    case 1:
      return {1, 20e9};
    case 2:
    case 3:
      return {2, 25e9};
    case 4:
    case 5:
      return {3, 25e9};
    case 6:
      return {4, 25e9};
    case 7:
      return {5, 50e9};
    default:
      return {0, 0};
  }
}

// The GPUs that a path touches; host memory is none.
std::vector<const GpuFacts*> EndsOf(const PathFacts& path, const Facts& facts) {
  const bool collective = path.kind == PathKind::kAllReduce || path.kind == PathKind::kSendReceive;
  std::vector<const GpuFacts*> ends;
  for (const GpuFacts& gpu : facts.gpus) {
    if (gpu.uuid == path.from || gpu.uuid == path.to || (collective && gpu.visible)) {
      ends.push_back(&gpu);
    }
  }
  return ends;
}

Promise OfNvLink(const GpuFacts& gpu) {
  const NvLink link = NvLinkOf(gpu.nvlink_version);
  if (link.generation == 0 || gpu.nvlinks == 0) return {};
  return {link.bytes_per_second * gpu.nvlinks,
          absl::StrCat(gpu.nvlinks, " x NVLink ", link.generation)};
}

Promise OfPcie(const GpuFacts& gpu) {
  const int generation = std::max(gpu.most_pcie_generation, gpu.pcie_generation);
  const int width = std::max(gpu.most_pcie_width, gpu.pcie_width);
  const double speed = PcieBytesPerSecond(generation, width);
  if (speed == 0) return {};
  return {speed, absl::StrCat("PCIe ", generation, " x", width)};
}

}  // namespace

double NvLinkBytesPerSecond(int nvml_version) { return NvLinkOf(nvml_version).bytes_per_second; }

double PcieBytesPerSecond(int generation, int width) {
  // Per lane, line code taken off: 8b/10b up to generation 2, 128b/130b up to 5, flits in 6.
  static constexpr double kPerLane[] = {0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  if (generation < 1 || generation > 6 || width < 1) return 0;
  return kPerLane[generation] * width;
}

Promise PromiseOf(const PathFacts& path, const Facts& facts) {
  if (path.link == "simulated") {
    if (path.simulated_promise <= 0) return {};
    return {path.simulated_promise, "HYPERFRAMES_HOST_DEVICES"};
  }
  Promise least;
  for (const GpuFacts* gpu : EndsOf(path, facts)) {
    const Promise own = path.link == "nvlink" ? OfNvLink(*gpu) : OfPcie(*gpu);
    if (own.bytes_per_second == 0) return {};
    if (least.bytes_per_second == 0 || own.bytes_per_second < least.bytes_per_second) least = own;
  }
  return least;
}

}  // namespace doctor
}  // namespace hyperframes
