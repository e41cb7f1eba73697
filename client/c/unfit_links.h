// The pre-flight at the start of a job: which of the links just measured are not worth using.
#ifndef HYPERFRAMES_CLIENT_C_UNFIT_LINKS_H_
#define HYPERFRAMES_CLIENT_C_UNFIT_LINKS_H_

#include <string>
#include <vector>

#include "client/doctor/facts.h"

namespace hyperframes {

// [{"from", "to", "sentence"}...] of the paths that the doctor calls broken; "[]" where all is
// well. `real`: they are of real GPUs, of which NVML is asked what was promised.
std::string UnfitLinksJson(std::vector<doctor::PathFacts> paths, bool real);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_C_UNFIT_LINKS_H_
