#include "agent/device/cuda/twin/twin_handles.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <utility>

namespace hyperframes {
namespace {

constexpr char kMark[] = "hyperframes twin";

struct Message {
  char text[sizeof(kMark)] = "";
  int descriptors[2] = {-1, -1};
  iovec part = {text, sizeof(text)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(descriptors))] = {};
  msghdr header = {};

  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
};

}  // namespace

TwinNote::~TwinNote() { close(note_); }

int WrapTwinDescriptor(int memory, int note) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  Message message;
  memcpy(message.text, kMark, sizeof(kMark));
  cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(message.descriptors));
  const int sent[2] = {memory, note};
  memcpy(CMSG_DATA(rights), sent, sizeof(sent));
  const bool done = sendmsg(ends[0], &message.header, MSG_NOSIGNAL) == sizeof(kMark);
  close(ends[0]);  // What was sent waits at the other end.
  if (done) return ends[1];
  close(ends[1]);
  return -1;
}

bool UnwrapTwinDescriptor(int wrapped, int* memory, std::shared_ptr<TwinNote>* note) {
  struct stat kind = {};
  if (fstat(wrapped, &kind) != 0 || !S_ISSOCK(kind.st_mode)) return false;
  Message message;
  // Looked at and left there, for whoever gets a duplicate.
  const ssize_t size =
      recvmsg(wrapped, &message.header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* const rights = size > 0 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS ||
      rights->cmsg_len != CMSG_LEN(sizeof(message.descriptors))) {
    return false;
  }
  memcpy(message.descriptors, CMSG_DATA(rights), sizeof(message.descriptors));
  *memory = message.descriptors[0];
  *note = std::make_shared<TwinNote>(message.descriptors[1]);
  if (size == sizeof(kMark) && memcmp(message.text, kMark, sizeof(kMark)) == 0) return true;
  close(*memory);
  note->reset();
  return false;
}

void TwinHandles::Add(CUmemGenericAllocationHandle handle, std::shared_ptr<TwinNote> note) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Held& held = handles_[handle];
  if (held.times++ == 0) held.note = std::move(note);
}

std::shared_ptr<TwinNote> TwinHandles::Find(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second.note;
}

void TwinHandles::Release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = handles_.find(handle);
  if (found != handles_.end() && --found->second.times == 0) handles_.erase(found);
}

void TwinHandles::Map(CUdeviceptr address, CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = handles_.find(handle);
  if (found != handles_.end()) mappings_[address] = found->second.note;
}

void TwinHandles::Unmap(CUdeviceptr address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  mappings_.erase(mappings_.lower_bound(address), mappings_.lower_bound(address + bytes));
}

}  // namespace hyperframes
