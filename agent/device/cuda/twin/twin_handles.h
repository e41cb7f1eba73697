// Which of this process's allocations are the twin's, and how their descriptors travel: as a socket
// in which the real descriptor and the note of who holds it wait to be looked at.
#ifndef HYPERFRAMES_AGENT_DEVICE_CUDA_TWIN_TWIN_HANDLES_H_
#define HYPERFRAMES_AGENT_DEVICE_CUDA_TWIN_TWIN_HANDLES_H_

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>

namespace hyperframes {

// Two descriptors, closed at the end: the memory's own (-1: not asked for) and the note's.
class TwinNote {
 public:
  explicit TwinNote(int note) : note_(note) {}
  ~TwinNote();
  TwinNote(const TwinNote&) = delete;
  TwinNote& operator=(const TwinNote&) = delete;
  int descriptor() const { return note_; }

 private:
  const int note_;
};

// A socket that holds both; -1 with errno set. `memory` stays the caller's.
int WrapTwinDescriptor(int memory, int note);
// The memory's descriptor, the caller's now, and its note; false where `wrapped` is no such socket.
bool UnwrapTwinDescriptor(int wrapped, int* memory, std::shared_ptr<TwinNote>* note);

// Thread-safe.
class TwinHandles {
 public:
  void Add(CUmemGenericAllocationHandle handle, std::shared_ptr<TwinNote> note);
  // Null: not the twin's.
  std::shared_ptr<TwinNote> Find(CUmemGenericAllocationHandle handle);
  void Release(CUmemGenericAllocationHandle handle);
  // A mapping holds memory when its handle is gone.
  void Map(CUdeviceptr address, CUmemGenericAllocationHandle handle);
  void Unmap(CUdeviceptr address, size_t bytes);

 private:
  struct Held {
    std::shared_ptr<TwinNote> note;
    int times = 0;  // The driver may give one handle to several imports.
  };
  std::mutex mutex_;
  std::map<CUmemGenericAllocationHandle, Held> handles_;
  std::map<CUdeviceptr, std::shared_ptr<TwinNote>> mappings_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_CUDA_TWIN_TWIN_HANDLES_H_
