// A diagnosis as JSON, for programs.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_REPORT_H_
#define HYPERFRAMES_CLIENT_DOCTOR_REPORT_H_

#include <string>

#include "client/doctor/judgement.h"

namespace hyperframes {
namespace doctor {

std::string SeverityText(Severity severity);  // "note", "warning", "broken".
std::string KindText(PathKind kind);          // "peer", "to-host", "all-reduce", ...

// {"healthy", "verdict", "elapsed_s", "driver_version", "host": {...}, "gpus": [{"uuid", "name",
// "simulated", "visible"}], "paths": [{"kind", "from", "to", "link", "bytes_per_second",
// "latency_s", "promised_bytes_per_second", "promised_by", "error", "out_of_time"}], "findings":
// [{"severity", "subject", "measured", "promised", "cause", "remedy"}]}, indented by two.
std::string ReportJson(const Facts& facts, const Diagnosis& diagnosis);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_REPORT_H_
