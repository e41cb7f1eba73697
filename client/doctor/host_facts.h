// What the system says without a GPU: limits, the container, whether the kernel has the driver.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_HOST_FACTS_H_
#define HYPERFRAMES_CLIENT_DOCTOR_HOST_FACTS_H_

#include <string>

#include "client/doctor/facts.h"

namespace hyperframes {
namespace doctor {

// Reads files below `root` ("" for the system's own; a test's folder), and this process's limits.
class HostFactSource final : public FactSource {
 public:
  explicit HostFactSource(std::string root = "") : root_(std::move(root)) {}

  std::string name() const override { return "the system's limits"; }
  void Collect(absl::Time deadline, Facts* facts) override;

 private:
  const std::string root_;
};

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_HOST_FACTS_H_
