// One copy of several that are queued together (Stream::CopyAll).
#ifndef HYPERFRAMES_AGENT_DEVICE_COPY_PART_H_
#define HYPERFRAMES_AGENT_DEVICE_COPY_PART_H_

#include "common/units.h"

namespace hyperframes {

struct CopyPart {
  void* to = nullptr;
  const void* from = nullptr;
  Bytes bytes = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_DEVICE_COPY_PART_H_
