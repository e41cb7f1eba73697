#include "common/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/unique_fd.h"

namespace hyperframes {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Sends `request` as it is and returns everything that comes back.
std::string Exchange(int port, const std::string& request) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return "";
  send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  char buffer[4096];
  for (ssize_t got; (got = recv(socket.get(), buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(got));
  }
  return answer;
}

std::string Ask(int port, const std::string& method, const std::string& path) {
  return Exchange(port, method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
}

std::unique_ptr<HttpServer> Serve(HttpServer::Handlers handlers) {
  auto server = HttpServer::Start({"127.0.0.1", 0}, std::move(handlers));
  EXPECT_TRUE(server.ok()) << server.status();
  return std::move(server).value();
}

TEST(HttpServer, AnswersOnThePortThatItTells) {
  const auto server = Serve({{"/metrics",
                              [] {
                                return HttpResponse{200, "text/x", "up 1\n"};
                              }},
                             {"/readyz", [] {
                                return HttpResponse{503, "text/plain", "no\n"};
                              }}});
  ASSERT_GT(server->port(), 0);
  const std::string metrics = Ask(server->port(), "GET", "/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("Content-Type: text/x\r\n"));
  EXPECT_THAT(metrics, HasSubstr("\r\n\r\nup 1\n"));
  EXPECT_THAT(Ask(server->port(), "GET", "/metrics?name=x"), HasSubstr("up 1"));
  EXPECT_THAT(Ask(server->port(), "GET", "/readyz"), StartsWith("HTTP/1.1 503 "));
}

TEST(HttpServer, HeadSendsTheLengthAndNoBody) {
  const auto server = Serve({{"/metrics", [] { return HttpResponse{200, "text/x", "up 1\n"}; }}});
  const std::string head = Ask(server->port(), "HEAD", "/metrics");
  EXPECT_THAT(head, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_EQ(head.find("up 1"), std::string::npos);
}

TEST(HttpServer, RefusesOtherPathsAndMethods) {
  const auto server = Serve({{"/livez", [] { return HttpResponse{}; }}});
  const std::string unknown = Ask(server->port(), "GET", "/livez/../etc/passwd/x");
  EXPECT_THAT(unknown, StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(server->port(), "GET", "/"), HasSubstr("there are: /livez"));
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    EXPECT_THAT(Ask(server->port(), method, "/livez"), StartsWith("HTTP/1.1 405 ")) << method;
  }
  EXPECT_THAT(Exchange(server->port(), "\x01\x02 nonsense\r\n\r\n"),
              ::testing::Not(StartsWith("HTTP/1.1 200")));
}

TEST(HttpServer, ServesManyClientsAtOnce) {
  std::atomic<int> calls{0};
  const auto server = Serve({{"/statusz", [&calls] {
                                ++calls;
                                return HttpResponse{200, "text/plain", std::string(100000, 's')};
                              }}});
  std::vector<std::thread> clients;
  std::atomic<int> whole{0};
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&] {
      if (Ask(server->port(), "GET", "/statusz").size() > 100000) ++whole;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(calls, 16);
  EXPECT_EQ(whole, 16);
}

TEST(HttpServer, SaysWhatIsWrongWhenItCannotStart) {
  const auto server = Serve({{"/livez", [] { return HttpResponse{}; }}});
  const auto taken = HttpServer::Start({"127.0.0.1", server->port()}, {});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr(std::to_string(server->port())));
  const auto crooked =
      HttpServer::Start({"127.0.0.1", 0}, {{"livez", [] { return HttpResponse{}; }}});
  EXPECT_EQ(crooked.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(HttpServer, GivesItsPortBack) {
  int port = 0;
  {
    const auto server = Serve({});
    port = server->port();
  }
  EXPECT_TRUE(HttpServer::Start({"localhost", port}, {}).ok());
}

}  // namespace
}  // namespace hyperframes
