// One frame of `hfctl top`, from plain values: who holds how much of what, now.
#ifndef HYPERFRAMES_CLIENT_CLI_TOP_H_
#define HYPERFRAMES_CLIENT_CLI_TOP_H_

#include <string>

#include "common/units.h"
#include "hyperframes/v1/coordinator.pb.h"

namespace hyperframes {

// A bar of `width` cells between brackets: '#' for used, '=' for lent, '.' for the rest. Anything
// above zero shows at least one cell, and nothing runs over the end.
std::string Bar(Bytes used, Bytes lent, Bytes whole, int width);

// Lines for a terminal of `columns` (at least 60 are used); each ends with a newline.
std::string RenderTop(const std::string& coordinator, const v1::ListNodesResponse& nodes,
                      const v1::ListJobsResponse& jobs, int columns);

// The frame cut to a screen, so that nothing wraps or scrolls: longer lines end at `columns`, and
// what is below `rows` is one line that says how much it is. 0: no limit.
std::string FitTo(const std::string& frame, int columns, int rows);

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CLI_TOP_H_
