#include "coordinator/checkpoints/checkpoint_check.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr size_t kMaxDirectoryBytes = 1024;
constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxHashBytes = 128;
constexpr size_t kDigestDigits = 64;
constexpr int kMaxMicroBatches = 4096;

absl::Status Bad(const std::string& field, const std::string& value, const std::string& rule) {
  // Quoted up to a character's beginning, so that the sentence stays UTF-8.
  size_t end = std::min<size_t>(value.size(), 80);
  while (end > 0 && end < value.size() && (static_cast<unsigned char>(value[end]) & 0xC0) == 0x80) {
    --end;
  }
  return absl::InvalidArgumentError(absl::StrCat(field, " '", value.substr(0, end),
                                                 end < value.size() ? "..." : "", "': ", rule));
}

bool IsPlain(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; }

absl::Status Differs(const std::string& field, const std::string& said, const std::string& known) {
  return Bad(field, said,
             absl::StrCat("'", known.substr(0, 80),
                          "' is what was said before for this checkpoint; all ranks and all "
                          "repeats have to say the same"));
}

}  // namespace

absl::Status CheckCheckpointDirectory(const std::string& directory) {
  if (directory.size() > kMaxDirectoryBytes) {
    return Bad("directory", directory,
               absl::StrCat(directory.size(), " bytes; at most ", kMaxDirectoryBytes));
  }
  const bool control = std::any_of(directory.begin(), directory.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  const std::string closed = directory + "/";
  if (control || directory.size() < 2 || directory[0] != '/' || absl::StrContains(closed, "//") ||
      absl::StrContains(closed, "/./") || absl::StrContains(closed, "/../")) {
    return Bad("directory", directory,
               "an absolute path without '.', '..', doubled or final '/' and control characters, "
               "as os.path.abspath writes it");
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpointName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes || name[0] == '.' ||
      !std::all_of(name.begin(), name.end(), IsPlain)) {
    return Bad("name", name,
               absl::StrCat("letters, digits, '-', '_' and '.', not '.' first, 1 to ",
                            kMaxNameBytes, " of them"));
  }
  return absl::OkStatus();
}

absl::Status CheckBegin(const v1::BeginCheckpointRequest& request) {
  HF_RETURN_IF_ERROR(CheckCheckpointDirectory(request.directory()));
  HF_RETURN_IF_ERROR(CheckCheckpointName(request.name()));
  if (request.global_step() < 0) {
    return Bad("global_step", absl::StrCat(request.global_step()), "0 or more");
  }
  if (request.superframe_id() < 0) {
    return Bad("superframe_id", absl::StrCat(request.superframe_id()), "0 or more");
  }
  if (request.world_size() < 1) {
    return Bad("world_size", absl::StrCat(request.world_size()), "1 or more");
  }
  const std::string& hash = request.topology_hash();
  if (hash.size() > kMaxHashBytes || !std::all_of(hash.begin(), hash.end(), IsPlain)) {
    return Bad("topology_hash", hash,
               absl::StrCat("at most ", kMaxHashBytes, " letters, digits, '-', '_' and '.'"));
  }
  return absl::OkStatus();
}

absl::Status CheckShard(const v1::CheckpointShard& shard) {
  if (shard.bytes() < 0) return Bad("shard.bytes", absl::StrCat(shard.bytes()), "0 or more");
  const std::string& digest = shard.digest();
  if (digest.size() != kDigestDigits || !std::all_of(digest.begin(), digest.end(), [](char c) {
        return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
      })) {
    return Bad("shard.digest", digest, "64 lower-case hex digits of a SHA-256");
  }
  if (shard.micro_batches_size() > kMaxMicroBatches) {
    return Bad("shard.micro_batches", absl::StrCat(shard.micro_batches_size(), " ids"),
               absl::StrCat("at most ", kMaxMicroBatches, "; end superframes more often"));
  }
  for (const int64_t id : shard.micro_batches()) {
    if (id < 0) return Bad("shard.micro_batches", absl::StrCat(id), "ids of 0 or more");
  }
  return absl::OkStatus();
}

absl::Status CheckSameBegin(const v1::BeginCheckpointRequest& request,
                            const v1::Checkpoint& checkpoint) {
  if (request.name() != checkpoint.name()) {
    return Differs("name", request.name(), checkpoint.name());
  }
  if (request.superframe_id() != checkpoint.superframe_id()) {
    return Differs("superframe_id", absl::StrCat(request.superframe_id()),
                   absl::StrCat(checkpoint.superframe_id()));
  }
  if (request.world_size() != checkpoint.world_size()) {
    return Differs("world_size", absl::StrCat(request.world_size()),
                   absl::StrCat(checkpoint.world_size()));
  }
  if (request.topology_hash() != checkpoint.topology_hash()) {
    return Differs("topology_hash", request.topology_hash(), checkpoint.topology_hash());
  }
  return absl::OkStatus();
}

absl::Status CheckSameShard(const v1::CheckpointShard& shard, const v1::CheckpointShard& earlier) {
  if (shard.digest() != earlier.digest()) {
    return Differs("shard.digest", shard.digest(), earlier.digest());
  }
  if (shard.bytes() != earlier.bytes()) {
    return Differs("shard.bytes", absl::StrCat(shard.bytes()), absl::StrCat(earlier.bytes()));
  }
  if (!std::equal(shard.micro_batches().begin(), shard.micro_batches().end(),
                  earlier.micro_batches().begin(), earlier.micro_batches().end())) {
    return Differs("shard.micro_batches", absl::StrCat(shard.micro_batches_size(), " ids"),
                   absl::StrCat(earlier.micro_batches_size(), " ids"));
  }
  return absl::OkStatus();
}

}  // namespace hyperframes
