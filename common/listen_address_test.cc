#include "common/listen_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hyperframes {
namespace {

using ::testing::HasSubstr;

TEST(ParseHostPort, ReadsNamesAddressesAndTheEmptyHost) {
  const auto check = [](const std::string& text, const std::string& host, int port) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, host);
    EXPECT_EQ(parsed->port, port);
  };
  check("127.0.0.1:7461", "127.0.0.1", 7461);
  check("node-7.example:1", "node-7.example", 1);
  check("[::1]:0", "::1", 0);
  check(":0", "127.0.0.1", 0);
  check("0.0.0.0:65535", "0.0.0.0", 65535);
}

TEST(ParseHostPort, NamesTheValueAndAnExample) {
  for (const char* bad :
       {"", "7461", "host", "host:", "host:65536", "host:-1", "host:+1", "::1:80", "[::1]", "[]:1",
        "a b:1", "host:1x", "http://x:1", "host:000001", "[::1:1", "[", "]:1", "host/:1"}) {
    const auto parsed = ParseHostPort(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(bad));
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("127.0.0.1:7461"));
  }
  EXPECT_LT(ParseHostPort(std::string(100000, ':')).status().message().size(), 300u);
}

TEST(FormatHostPort, PutsIpv6InBrackets) {
  EXPECT_EQ(FormatHostPort({"::1", 7461}), "[::1]:7461");
  EXPECT_EQ(FormatHostPort({"node7", 7461}), "node7:7461");
}

TEST(RequireLoopback, LetsOnlyLoopbackThroughWithoutTls) {
  for (const char* inside : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) {
    EXPECT_TRUE(RequireLoopback({inside, 1}, /*has_tls=*/false).ok()) << inside;
  }
  for (const char* outside : {"0.0.0.0", "::", "node7", "127.example.com", "1270.0.0.1", ""}) {
    const absl::Status status = RequireLoopback({outside, 7461}, /*has_tls=*/false);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << outside;
    EXPECT_THAT(std::string(status.message()), HasSubstr("TLS"));
    EXPECT_TRUE(RequireLoopback({outside, 7461}, /*has_tls=*/true).ok()) << outside;
  }
}

}  // namespace
}  // namespace hyperframes
