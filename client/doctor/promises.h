// What each kind of link promises, in one direction, by its makers' figures.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_PROMISES_H_
#define HYPERFRAMES_CLIENT_DOCTOR_PROMISES_H_

#include <string>

#include "client/doctor/facts.h"

namespace hyperframes {
namespace doctor {

struct Promise {
  double bytes_per_second = 0;  // 0: nothing is known to be promised.
  std::string by;               // "18 x NVLink 4", "PCIe 5 x16".
};

// Bytes per second of one link in one direction; 0 for an unknown version.
double NvLinkBytesPerSecond(int nvml_version);
// The same of `width` lanes; 0 for an unknown generation or width.
double PcieBytesPerSecond(int generation, int width);

// The slower end counts, each at the best that its slot or its links can do: a slot that has fallen
// back is not what was promised. Of a collective: what its slowest GPU promises.
Promise PromiseOf(const PathFacts& path, const Facts& facts);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_PROMISES_H_
