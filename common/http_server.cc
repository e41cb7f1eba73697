#include "common/http_server.h"

#include <civetweb.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace hyperframes {
namespace {

const char* Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return code >= 500 ? "Internal Server Error" : "Answer";
  }
}

// A body is copied once into civetweb's socket; what a scraper can take is bounded anyway.
constexpr size_t kMostBody = size_t{64} << 20;

}  // namespace

HttpResponse HttpServer::Answer(const std::string& method, const std::string& path) const {
  HttpResponse response;
  if (method != "GET" && method != "HEAD") {
    response.code = 405;
    response.body = "only GET and HEAD are answered here\n";
    return response;
  }
  const auto found = handlers_.find(path);
  if (found != handlers_.end()) {
    response = found->second();
    if (response.body.size() <= kMostBody) return response;
    response.code = 500;
    response.body = absl::StrCat("the answer has ", response.body.size(), " bytes, more than ",
                                 kMostBody, "\n");
    return response;
  }
  response.code = 404;
  response.body = absl::StrCat(
      "no such page; there are: ",
      absl::StrJoin(handlers_, " ",
                    [](std::string* out, const auto& entry) { out->append(entry.first); }),
      "\n");
  return response;
}

int HttpServer::OnRequest(mg_connection* connection, void* self) {
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string method = request->request_method != nullptr ? request->request_method : "";
  const std::string path = request->local_uri != nullptr ? request->local_uri : "";
  const HttpResponse response = static_cast<HttpServer*>(self)->Answer(method, path);
  const std::string head = absl::StrCat(
      "HTTP/1.1 ", response.code, " ", Reason(response.code),
      "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff"
      "\r\nConnection: close\r\n\r\n");
  mg_write(connection, head.data(), head.size());
  if (method != "HEAD") mg_write(connection, response.body.data(), response.body.size());
  return response.code;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HostPort& address,
                                                              Handlers handlers) {
  for (const auto& [path, handler] : handlers) {
    if (path.empty() || path[0] != '/') {
      return absl::InvalidArgumentError(
          absl::StrCat("HTTP path \"", path, "\" must begin with '/'"));
    }
    if (!handler) return absl::InvalidArgumentError(absl::StrCat("HTTP path ", path, ": no code"));
  }
  // civetweb takes addresses only.
  HostPort numeric = address;
  if (numeric.host == "localhost") numeric.host = "127.0.0.1";
  const std::string listen = FormatHostPort(numeric);
  // keep-alive off and short timeouts: four threads must not be held by idle or slow clients.
  const char* options[] = {"listening_ports",
                           listen.c_str(),
                           "num_threads",
                           "4",
                           "request_timeout_ms",
                           "5000",
                           "enable_keep_alive",
                           "no",
                           "max_request_size",
                           "16384",
                           nullptr};
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handlers)));
  mg_init_library(0);
  mg_callbacks callbacks{};
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
  server->context_ = mg_start(&callbacks, server.get(), options);
  if (server->context_ == nullptr) {
    mg_exit_library();
    return absl::UnavailableError(absl::StrCat(
        "cannot serve HTTP on ", listen,
        ": the port is taken or the address is not this machine's; choose another, or port 0"));
  }
  mg_set_request_handler(server->context_, "**", &HttpServer::OnRequest, server.get());
  mg_server_port bound[1] = {};
  if (mg_get_server_ports(server->context_, 1, bound) < 1 || bound[0].port <= 0) {
    return absl::InternalError(absl::StrCat("cannot tell the port bound for ", listen));
  }
  server->port_ = bound[0].port;
  server->host_ = numeric.host;
  return server;
}

HttpServer::~HttpServer() {
  if (context_ == nullptr) return;
  // civetweb looks at its stop flag only between two polls of 2 s: connections of our own wake it,
  // or every daemon would end two seconds late.
  Mutex mutex;
  CondVar changed;
  bool stopped = false;
  std::thread waker([&] {
    MutexLock lock(&mutex);
    while (!changed.WaitFor(&mutex, absl::Milliseconds(10), [&] { return stopped; })) {
      char error[128];
      mg_connection* connection =
          mg_connect_client(host_.c_str(), port_, /*use_ssl=*/0, error, sizeof(error));
      if (connection != nullptr) mg_close_connection(connection);
    }
  });
  mg_stop(context_);
  {
    MutexLock lock(&mutex);
    stopped = true;
    changed.NotifyAll();
  }
  waker.join();
  mg_exit_library();
}

}  // namespace hyperframes
