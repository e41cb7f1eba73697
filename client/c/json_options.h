// JSON options of the C ABI that are no protobuf message: declared, then parsed strictly.
//
//   JsonOptions reader("options_json");
//   reader.Size("stash_limit", &options.stash_limit);
//   HF_RETURN_IF_ERROR(reader.Parse(json));
#ifndef HYPERFRAMES_CLIENT_C_JSON_OPTIONS_H_
#define HYPERFRAMES_CLIENT_C_JSON_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/units.h"

namespace hyperframes {

// Used once, by one thread. Targets outlive it and keep their value where the text has no such
// field, or null.
class JsonOptions {
 public:
  // `what` names the object in errors: "options_json", "leases[2]".
  explicit JsonOptions(std::string what) : what_(std::move(what)) {}

  void String(const std::string& name, std::string* target);
  void Bool(const std::string& name, bool* target);
  // Finite.
  void Number(const std::string& name, double* target);
  void Integer(const std::string& name, int64_t* target);
  // A count of bytes as a number, as its decimal string, or as people write it ("64MiB"). >= 0.
  void Size(const std::string& name, Bytes* target);
  // Whatever it is, but null.
  void Any(const std::string& name, std::function<absl::Status(const nlohmann::json& value)> read);
  // Calls `element` for each, with a name like "leases[2]".
  void Array(
      const std::string& name,
      std::function<absl::Status(const nlohmann::json& element, const std::string& what)> element);

  // An empty text reads as "{}". InvalidArgument: not JSON (with the position), not an object, an
  // unknown field (named, with the known ones), or a wrong kind (field, value and what is wanted).
  absl::Status Parse(const std::string& text) const;
  absl::Status Read(const nlohmann::json& object) const;

 private:
  using Reader = std::function<absl::Status(const nlohmann::json& value)>;
  absl::Status Wrong(const std::string& name, const nlohmann::json& value,
                     const std::string& wanted) const;

  const std::string what_;
  std::vector<std::pair<std::string, Reader>> fields_;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_C_JSON_OPTIONS_H_
