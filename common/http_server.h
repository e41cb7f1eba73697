// A small read-only HTTP server for /metrics, /livez, /readyz and /statusz.
#ifndef HYPERFRAMES_COMMON_HTTP_SERVER_H_
#define HYPERFRAMES_COMMON_HTTP_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/listen_address.h"

struct mg_context;
struct mg_connection;

namespace hyperframes {

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  using Handlers = std::map<std::string, std::function<HttpResponse()>>;

  // Serves until destroyed. `handlers` maps exact paths ("/metrics"); each may run on several of
  // the server's threads at once. GET and HEAD only (405 otherwise); an unknown path is 404 and
  // lists the known ones. Whether a non-loopback address is allowed is the caller's decision.
  // InvalidArgument: a path without a leading '/'. Unavailable: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HostPort& address,
                                                           Handlers handlers);
  // Waits for requests under way.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The port that was really bound.
  int port() const { return port_; }

 private:
  explicit HttpServer(Handlers handlers) : handlers_(std::move(handlers)) {}
  static int OnRequest(mg_connection* connection, void* self);
  HttpResponse Answer(const std::string& method, const std::string& path) const;

  const Handlers handlers_;
  mg_context* context_ = nullptr;
  std::string host_;
  int port_ = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COMMON_HTTP_SERVER_H_
