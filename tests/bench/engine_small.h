// Small storages, which travel together, against plain copies of the same bytes one by one.
#ifndef HYPERFRAMES_TESTS_BENCH_ENGINE_SMALL_H_
#define HYPERFRAMES_TESTS_BENCH_ENGINE_SMALL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/units.h"
#include "nlohmann/json.hpp"
#include "tests/bench/engine_way.h"

namespace hyperframes {

constexpr int kSmallCount = 512;
constexpr Bytes kSmall = 64 * kKiB;

// The first kSmallCount * kSmall bytes of the source to the lender and to `back`, as the front
// moves them: put one after the other, and back as the engine names them.
absl::Status MoveSmall(Way* way);

// Prints a line, and adds a row and a ratio to `report`.
absl::Status MeasureSmall(Way* way, int64_t rounds, nlohmann::ordered_json* report);

}  // namespace hyperframes

#endif  // HYPERFRAMES_TESTS_BENCH_ENGINE_SMALL_H_
