// What every benchmark writes: docs/benchmarks/<name>.json in one shape.
#ifndef HYPERFRAMES_TESTS_BENCH_REPORT_H_
#define HYPERFRAMES_TESTS_BENCH_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace hyperframes {

// {"name", "command", "commit", "machine", "rows": [], "ratios": {}}.
nlohmann::ordered_json EmptyReport(const std::string& name, const std::string& command);

// FailedPrecondition names the path.
absl::Status WriteReport(const std::string& path, const nlohmann::ordered_json& report);

// Copies what other programs have written into the file at `path`: the ratios that its
// "ratios_from" names, with the file that each comes from. A file that is missing or no report has
// none.
void KeepOtherRatios(const std::string& path, nlohmann::ordered_json* report);

// docs/benchmarks/<name>.json of the checkout under `bazel run`, else below this directory.
std::string DefaultReportPath(const std::string& name);

// Nearest-rank percentile, 0 < share <= 1. Sorts `values`, which are not empty.
double Percentile(std::vector<double>* values, double share);

}  // namespace hyperframes

#endif  // HYPERFRAMES_TESTS_BENCH_REPORT_H_
