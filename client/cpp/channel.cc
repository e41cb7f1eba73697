#include "client/cpp/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr int kLargestMessageBytes = 64 << 20;  // A plan of 100,000 frames is about 10 MiB.

absl::StatusOr<std::string> ReadCertificates(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("cannot read the CA file ", path, ": ", std::strerror(errno)));
  }
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.find("-----BEGIN CERTIFICATE-----") == std::string::npos) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CA file ", path, " holds no PEM certificate"));
  }
  return text;
}

}  // namespace

grpc::ChannelArguments ClientChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kServerShortestPingMs + 60 * 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  // A coordinator that comes back is found within these, not within gRPC's two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetMaxReceiveMessageSize(kLargestMessageBytes);
  arguments.SetMaxSendMessageSize(kLargestMessageBytes);
  // One client's backoff must not hold up another client of the same process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // http_proxy is set on many GPU nodes for package mirrors; a coordinator is never behind it.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Retries are ours (retry.h): gRPC's own would hide attempts from the deadline arithmetic.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return arguments;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> CreateClientChannel(const std::string& address,
                                                                   const std::string& ca_file) {
  HF_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  if (parsed.port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot connect to \"", address,
                     "\": port 0 is only for listening; give the port that "
                     "hfcoordinator printed, e.g. 127.0.0.1:7461"));
  }
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!ca_file.empty()) {
    grpc::SslCredentialsOptions options;
    HF_ASSIGN_OR_RETURN(options.pem_root_certs, ReadCertificates(ca_file));
    credentials = grpc::SslCredentials(options);
  }
  return grpc::CreateCustomChannel(FormatHostPort(parsed), credentials, ClientChannelArguments());
}

}  // namespace hyperframes
