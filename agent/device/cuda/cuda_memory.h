// Memory of a GPU as a lease knows it: one allocation that its lender made and exported, and
// mappings of it for the GPUs that use it. The lender needs no context for it, and hiding the
// lender from the borrower (CUDA_VISIBLE_DEVICES) hides nothing: the descriptor is enough.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_MEMORY_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_MEMORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/device/cuda/cuda_context.h"
#include "agent/device/device.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace hyperframes {

// `bytes` in the granules that allocations of a device come in (2 MiB on today's GPUs). The two
// ends of a lease compute it alike.
absl::StatusOr<Bytes> InGranules(const CudaDriver& driver, CUdevice device, Bytes bytes);

// The lender's side: physical memory and its descriptor, without an address. data() is null.
class ExportedMemory final : public Memory {
 public:
  // ResourceExhausted names `uuid` and the bytes. Unimplemented: memory of this GPU cannot be
  // exported (MIG, some virtual GPUs).
  static absl::StatusOr<std::unique_ptr<Memory>> Create(const CudaDriver* driver, CUdevice device,
                                                        const std::string& uuid, Bytes bytes);
  // The same allocation again, from its descriptor, after the process that made it has gone. Takes
  // ownership of `descriptor`, also when it fails. InvalidArgument: no exported allocation, or one
  // of another GPU. Its size is the caller's word: the driver tells nobody without a context.
  static absl::StatusOr<std::unique_ptr<Memory>> Adopt(const CudaDriver* driver, CUdevice device,
                                                       const std::string& uuid, int descriptor,
                                                       Bytes bytes);
  ~ExportedMemory() override;

  char* data() const override { return nullptr; }
  Bytes bytes() const override { return bytes_; }
  int descriptor() const override { return descriptor_.get(); }

 private:
  ExportedMemory(const CudaDriver* driver, CUmemGenericAllocationHandle handle, UniqueFd descriptor,
                 Bytes bytes)
      : driver_(driver), handle_(handle), descriptor_(std::move(descriptor)), bytes_(bytes) {}

  const CudaDriver* const driver_;
  const CUmemGenericAllocationHandle handle_;
  const UniqueFd descriptor_;
  const Bytes bytes_;
};

// The borrower's side: an address range of the GPU of `context`, over somebody's allocation. Copies
// that use it have finished before it is destroyed.
class MappedMemory final : public Memory {
 public:
  // Takes ownership of `descriptor`, also when it fails. InvalidArgument: no exported allocation,
  // or one smaller than `bytes`. FailedPrecondition: the GPU cannot reach the lender.
  static absl::StatusOr<std::unique_ptr<Memory>> Map(std::shared_ptr<const CudaContext> context,
                                                     int descriptor, Bytes bytes);
  ~MappedMemory() override;

  char* data() const override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver writes addresses as integers.
    return reinterpret_cast<char*>(address_);
  }
  Bytes bytes() const override { return bytes_; }
  int descriptor() const override { return descriptor_.get(); }

 private:
  MappedMemory(std::shared_ptr<const CudaContext> context, CUdeviceptr address, Bytes reserved,
               UniqueFd descriptor, Bytes bytes)
      : context_(std::move(context)),
        address_(address),
        reserved_(reserved),
        descriptor_(std::move(descriptor)),
        bytes_(bytes) {}

  const std::shared_ptr<const CudaContext> context_;
  const CUdeviceptr address_;
  const Bytes reserved_;  // bytes_ in granules.
  const UniqueFd descriptor_;
  const Bytes bytes_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_CUDA_MEMORY_H_
