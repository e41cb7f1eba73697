#include "common/listen_address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace hyperframes {
namespace {

bool IsHostCharacter(char c, bool in_brackets) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_' || (in_brackets && (c == ':' || c == '%'));
}

bool IsHost(const std::string& host, bool in_brackets) {
  if (host.empty() || host.size() > 255) return false;
  for (const char c : host) {
    if (!IsHostCharacter(c, in_brackets)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const auto refuse = [&text](const char* why) {
    constexpr size_t kMost = 80;
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", text.substr(0, kMost), text.size() > kMost ? "..." : "", "\" ",
                     why, "; write it like 127.0.0.1:7461, [::1]:7461 or :0"));
  };
  const size_t colon = text.rfind(':');
  const bool in_brackets = !text.empty() && text[0] == '[';
  if (colon == std::string::npos || (in_brackets && text[colon - 1] != ']')) {
    return refuse("has no port");
  }
  HostPort address;
  address.host = text.substr(0, colon);
  if (address.host.empty()) address.host = "127.0.0.1";
  if (in_brackets) {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return refuse("has more than one colon: an IPv6 address goes in brackets");
  }
  if (!IsHost(address.host, in_brackets)) return refuse("has a host that is no name or address");
  const std::string port = text.substr(colon + 1);
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || port.size() > 5 || !absl::SimpleAtoi(port, &address.port) ||
      address.port > 65535) {
    return refuse("has a port outside 0..65535");
  }
  return address;
}

std::string FormatHostPort(const HostPort& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return is_ipv6 ? absl::StrCat("[", address.host, "]:", address.port)
                 : absl::StrCat(address.host, ":", address.port);
}

bool IsLoopback(const HostPort& address) {
  if (address.host == "localhost" || address.host == "::1") return true;
  // Numbers only: "127.example.com" is somebody's name, not this machine.
  return absl::StartsWith(address.host, "127.") &&
         address.host.find_first_not_of("0123456789.") == std::string::npos;
}

absl::Status RequireLoopback(const HostPort& address, bool has_tls) {
  if (has_tls || IsLoopback(address)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("refusing to listen on ", FormatHostPort(address),
                   " without TLS: anybody who reaches it could start programs here; use a loopback "
                   "address such as 127.0.0.1:",
                   address.port, ", or set up TLS"));
}

}  // namespace hyperframes
