#include "agent/device/nccl/nccl_library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr const char* kName = "libnccl.so.2";

template <typename Function>
absl::Status Load(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(kName, " has no ", name, ": NCCL is too old; use 2.14 or later"));
}

std::vector<std::string> Candidates(const std::string& path, const std::string& folder) {
  std::vector<std::string> candidates;
  if (!path.empty()) candidates.push_back(path);
  const char* const set = getenv("HYPERFRAMES_NCCL_LIBRARY");
  if (set != nullptr && *set != '\0') candidates.push_back(set);
  candidates.push_back(kName);
  if (!folder.empty()) candidates.push_back(absl::StrCat(folder, "/", kName));
  return candidates;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclLibrary>> NcclLibrary::Open(const std::string& path,
                                                               const std::string& folder) {
  // A program that uses multicast and dies can put every GPU of the host out of service.
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/1);
  const std::vector<std::string> candidates = Candidates(path, folder);
  void* opened = nullptr;
  for (const std::string& candidate : candidates) {
    opened = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened != nullptr) break;
  }
  if (opened == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "NCCL is not to be found (tried ", absl::StrJoin(candidates, ", ").substr(0, 400),
        "): set HYPERFRAMES_NCCL_LIBRARY to the libnccl.so.2 that came with torch"));
  }
  auto library = std::make_unique<NcclLibrary>();
  HF_RETURN_IF_ERROR(Load(opened, "ncclGetVersion", &library->get_version));
  HF_RETURN_IF_ERROR(Load(opened, "ncclGetUniqueId", &library->get_unique_id));
  HF_RETURN_IF_ERROR(Load(opened, "ncclCommInitRankConfig", &library->comm_init_rank_config));
  HF_RETURN_IF_ERROR(Load(opened, "ncclCommGetAsyncError", &library->comm_get_async_error));
  HF_RETURN_IF_ERROR(Load(opened, "ncclCommAbort", &library->comm_abort));
  HF_RETURN_IF_ERROR(Load(opened, "ncclSend", &library->send));
  HF_RETURN_IF_ERROR(Load(opened, "ncclRecv", &library->recv));
  HF_RETURN_IF_ERROR(Load(opened, "ncclAllReduce", &library->all_reduce));
  HF_RETURN_IF_ERROR(Load(opened, "ncclGroupStart", &library->group_start));
  HF_RETURN_IF_ERROR(Load(opened, "ncclGroupEnd", &library->group_end));
  HF_RETURN_IF_ERROR(Load(opened, "ncclGetErrorString", &library->get_error_string));
  HF_RETURN_IF_ERROR(Load(opened, "ncclGetLastError", &library->get_last_error));
  return library;
}

absl::Status NcclLibrary::Check(NcclResult result, const char* call, NcclComm* comm) const {
  if (result == kNcclSuccess) return absl::OkStatus();
  const char* const name = get_error_string(result);
  const char* const more = get_last_error(comm);
  return absl::Status(
      result == kNcclRemoteError ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal,
      absl::StrCat(call, " failed: ", name == nullptr ? "unknown error" : name, "; ",
                   std::string(more == nullptr ? "" : more).substr(0, 200)));
}

}  // namespace hyperframes
