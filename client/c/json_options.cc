#include "client/c/json_options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

using nlohmann::json;

constexpr size_t kLongestQuote = 64;

std::string Quote(const std::string& text) {
  if (text.size() <= kLongestQuote) return text;
  return text.substr(0, kLongestQuote) + "...";
}

// Text in errors must be UTF-8 whatever came in.
std::string Dump(const json& value) {
  return Quote(value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace));
}

}  // namespace

absl::Status JsonOptions::Wrong(const std::string& name, const json& value,
                                const std::string& wanted) const {
  return absl::InvalidArgumentError(
      absl::StrCat(what_, ": \"", name, "\" is ", Dump(value), "; wanted ", wanted));
}

void JsonOptions::String(const std::string& name, std::string* target) {
  fields_.emplace_back(name, [=](const json& value) -> absl::Status {
    if (!value.is_string()) return Wrong(name, value, "a string");
    *target = value.get<std::string>();
    return absl::OkStatus();
  });
}

void JsonOptions::Bool(const std::string& name, bool* target) {
  fields_.emplace_back(name, [=](const json& value) -> absl::Status {
    if (!value.is_boolean()) return Wrong(name, value, "true or false");
    *target = value.get<bool>();
    return absl::OkStatus();
  });
}

void JsonOptions::Number(const std::string& name, double* target) {
  fields_.emplace_back(name, [=](const json& value) -> absl::Status {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      return Wrong(name, value, "a number");
    }
    *target = value.get<double>();
    return absl::OkStatus();
  });
}

void JsonOptions::Integer(const std::string& name, int64_t* target) {
  fields_.emplace_back(name, [=](const json& value) -> absl::Status {
    const bool too_large =
        value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    if (!value.is_number_integer() || too_large) return Wrong(name, value, "an integer");
    *target = value.get<int64_t>();
    return absl::OkStatus();
  });
}

void JsonOptions::Size(const std::string& name, Bytes* target) {
  fields_.emplace_back(name, [=](const json& value) -> absl::Status {
    if (value.is_string()) {
      const absl::StatusOr<Bytes> parsed = ParseBytes(value.get<std::string>());
      if (!parsed.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(what_, ": \"", name, "\": ", parsed.status().message()));
      }
      *target = *parsed;
      return absl::OkStatus();
    }
    const double number = value.is_number() ? value.get<double>() : -1;
    // Python writes whole numbers as 1e9 or 1000.0 where an expression was a float.
    if (!(number >= 0 && number <= 4.6e18 && std::floor(number) == number)) {
      return Wrong(name, value, "a count of bytes >= 0");
    }
    *target = value.is_number_float() ? static_cast<Bytes>(number) : value.get<Bytes>();
    return absl::OkStatus();
  });
}

void JsonOptions::Any(const std::string& name,
                      std::function<absl::Status(const nlohmann::json& value)> read) {
  fields_.emplace_back(name, std::move(read));
}

void JsonOptions::Array(
    const std::string& name,
    std::function<absl::Status(const json& element, const std::string& what)> element) {
  fields_.emplace_back(name, [=, element = std::move(element)](const json& value) -> absl::Status {
    if (!value.is_array()) return Wrong(name, value, "a list");
    for (size_t i = 0; i < value.size(); ++i) {
      HF_RETURN_IF_ERROR(element(value[i], absl::StrCat(name, "[", i, "]")));
    }
    return absl::OkStatus();
  });
}

absl::Status JsonOptions::Parse(const std::string& text) const {
  if (text.empty()) return absl::OkStatus();
  json object;
  try {
    object = json::parse(text);
  } catch (const json::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(what_, " cannot be read as JSON at byte ", error.byte, " of ", text.size()));
  }
  return Read(object);
}

absl::Status JsonOptions::Read(const json& object) const {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what_, " is ", Dump(object), "; wanted an object {...}"));
  }
  for (auto item = object.begin(); item != object.end(); ++item) {
    const std::string& name = item.key();
    const auto field = std::find_if(fields_.begin(), fields_.end(),
                                    [&](const auto& known) { return known.first == name; });
    if (field == fields_.end()) {
      const std::string known = absl::StrJoin(
          fields_, ", ", [](std::string* out, const auto& entry) { out->append(entry.first); });
      return absl::InvalidArgumentError(
          absl::StrCat(what_, " has no field ", Dump(name), "; there are ", known));
    }
    if (item->is_null()) continue;
    HF_RETURN_IF_ERROR(field->second(*item));
  }
  return absl::OkStatus();
}

}  // namespace hyperframes
