// Small files that are either the old one or the new one, whatever is killed when.
#ifndef HYPERFRAMES_AGENT_SUPERVISOR_RECORD_FILE_H_
#define HYPERFRAMES_AGENT_SUPERVISOR_RECORD_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hyperframes {

constexpr size_t kMostRecordBytes = 1 << 20;

// Writes `path` by a temporary name, fsync and rename. Without `durable` the fsyncs are left out:
// the file survives a killed process but perhaps not a power cut. Readable by this user alone.
// Unavailable: the file system refuses; the message names path and reason.
absl::Status WriteRecordFile(const std::string& path, const std::string& content, bool durable);

// NotFound: no such file. DataLoss: larger than kMostRecordBytes. Unavailable: unreadable.
absl::StatusOr<std::string> ReadRecordFile(const std::string& path);

// Makes `path` and its parents, for this user alone. Unavailable: it cannot be made.
absl::Status MakeDirectories(const std::string& path);

// Names in a directory, sorted, without those that start with a dot; empty when there is none.
std::vector<std::string> ListDirectory(const std::string& path);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SUPERVISOR_RECORD_FILE_H_
