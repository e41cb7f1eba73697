// Early returns for absl::Status. Room: common. Knows nothing of the product.
#ifndef HYPERFRAMES_COMMON_STATUS_MACROS_H_
#define HYPERFRAMES_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expression` (an absl::Status) is not OK.
#define HF_RETURN_IF_ERROR(expression)        \
  do {                                        \
    ::absl::Status hf_status_ = (expression); \
    if (!hf_status_.ok()) return hf_status_;  \
  } while (false)

#define HF_CONCAT_INNER_(a, b) a##b
#define HF_CONCAT_(a, b) HF_CONCAT_INNER_(a, b)

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses.
// `HF_ASSIGN_OR_RETURN(auto x, Compute());` moves the value out, or returns the status.
#define HF_ASSIGN_OR_RETURN(lhs, expression) \
  HF_ASSIGN_OR_RETURN_IMPL_(HF_CONCAT_(hf_statusor_, __LINE__), lhs, expression)
#define HF_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expression) \
  auto statusor = (expression);                              \
  if (!statusor.ok()) return statusor.status();              \
  lhs = std::move(statusor).value()
// NOLINTEND(bugprone-macro-parentheses)

#endif  // HYPERFRAMES_COMMON_STATUS_MACROS_H_
