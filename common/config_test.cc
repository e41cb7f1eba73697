#include "common/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "common/random_id.h"

namespace hyperframes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Program {
  std::string listen = "127.0.0.1:7461";
  Bytes host_bytes = kGiB;
  absl::Duration wait = absl::Seconds(60);
  int64_t ranks = 1;
  double share = 0.5;
  bool verify = false;
  std::map<std::string, std::string> environment;
  std::ostringstream out;
  Config config{"hfthing", "Does a thing."};

  Program() {
    config.set_surroundings({[this](const std::string& name) -> const char* {
                               const auto found = environment.find(name);
                               return found == environment.end() ? nullptr : found->second.c_str();
                             },
                             &out});
    config.AddString(&listen, "listen-address", "where to listen");
    config.AddBytes(&host_bytes, "host-bytes", "memory to lend");
    config.AddDuration(&wait, "plan-wait", "how long to wait");
    config.AddInt(&ranks, "ranks", 1, 4096, "how many");
    config.AddDouble(&share, "share", 0, 1, "of what");
    config.AddBool(&verify, "verify", "checksums");
    config.AddShort('n', "ranks");
  }
  absl::StatusOr<Config::Outcome> Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "hfthing");
    return config.Parse(static_cast<int>(arguments.size()), arguments.data());
  }
  // The sentence of a Parse that must fail with InvalidArgument.
  std::string Refusal(std::vector<const char*> arguments) {
    const auto parsed = Parse(std::move(arguments));
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << parsed.status();
    EXPECT_LT(parsed.status().message().size(), 600u);
    return std::string(parsed.status().message());
  }
};

// A file that is gone when the test ends.
class File {
 public:
  explicit File(const std::string& text) : path_(testing::TempDir() + "hf" + RandomHex(8)) {
    std::ofstream(path_) << text;
  }
  ~File() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(Config, ReadsEveryKindInBothSpellings) {
  Program program;
  ASSERT_EQ(*program.Parse({"--listen-address=:0", "--host-bytes", "512MiB", "--plan-wait=5s", "-n",
                            "4", "--share=0.25", "--verify", "submit", "--", "--python", "x"}),
            Config::Outcome::kRun);
  EXPECT_EQ(program.listen, ":0");
  EXPECT_EQ(program.host_bytes, 512 * kMiB);
  EXPECT_EQ(program.wait, absl::Seconds(5));
  EXPECT_EQ(program.ranks, 4);
  EXPECT_EQ(program.share, 0.25);
  EXPECT_TRUE(program.verify);
  EXPECT_THAT(program.config.positional(), ElementsAre("submit", "--python", "x"));
}

TEST(Config, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const File file("host_bytes = 1MiB\nranks = 2   # two\n\n# verify\nshare=0.1\n");
  Program program;
  program.environment = {{"HYPERFRAMES_HOST_BYTES", "2MiB"},
                         {"HYPERFRAMES_RANKS", "3"},
                         {"HYPERFRAMES_LISTEN_ADDRESS", ""},
                         {"HYPERFRAMES_CONFIG", file.path()}};
  ASSERT_TRUE(program.Parse({"--ranks=4"}).ok());
  EXPECT_EQ(program.ranks, 4);
  EXPECT_EQ(program.host_bytes, 2 * kMiB);
  EXPECT_EQ(program.share, 0.1);
  EXPECT_EQ(program.listen, "127.0.0.1:7461");  // An empty variable counts as unset.
  EXPECT_TRUE(program.config.WasSet("share"));
  EXPECT_FALSE(program.config.WasSet("verify"));
}

TEST(Config, PrintConfigShowsValueAndSource) {
  const File file("share = 0.1\n");
  Program program;
  program.environment = {{"HYPERFRAMES_RANKS", "3"}};
  ASSERT_EQ(
      *program.Parse({"--config", file.path().c_str(), "--host-bytes=1024MiB", "--print-config"}),
      Config::Outcome::kExit);
  EXPECT_THAT(program.out.str(), HasSubstr("host_bytes = 1GiB  # flag\n"));
  EXPECT_THAT(program.out.str(), HasSubstr("ranks = 3  # environment HYPERFRAMES_RANKS\n"));
  EXPECT_THAT(program.out.str(), HasSubstr("share = 0.1  # " + file.path() + ":1\n"));
  EXPECT_THAT(program.out.str(), HasSubstr("plan_wait = 1m  # default\n"));
}

TEST(Config, WhatPrintConfigPrintsCanBeReadBack) {
  Program first;
  ASSERT_TRUE(first.Parse({"--ranks=7", "--print-config"}).ok());
  std::string text = first.out.str();
  text = text.substr(text.find("listen_address"));  // All but `config` itself.
  const File file(text);
  Program second;
  ASSERT_EQ(*second.Parse({"--config", file.path().c_str()}), Config::Outcome::kRun);
  EXPECT_EQ(second.ranks, 7);
  EXPECT_EQ(second.wait, absl::Seconds(60));
}

TEST(Config, UnknownFlagsGetTheNearestName) {
  EXPECT_THAT(Program().Refusal({"--listen-adress=:0"}),
              HasSubstr("unknown flag --listen-adress; did you mean --listen-address?"));
  EXPECT_THAT(Program().Refusal({"--zzzzzz"}), HasSubstr("hfthing --help"));
  EXPECT_THAT(Program().Refusal({"-x"}), HasSubstr("unknown flag -x"));
  EXPECT_THAT(Program().Refusal({"--no-ranks"}), HasSubstr("--no-ranks"));
}

TEST(Config, UnknownKeysAreNamedWithFileAndLine) {
  const File file("ranks = 2\nhost_byte = 1\n");
  EXPECT_THAT(Program().Refusal({"--config", file.path().c_str()}),
              HasSubstr(file.path() + ":2: unknown key \"host_byte\"; did you mean host_bytes?"));
  for (const char* bad : {"ranks 2\n", "= 2\n", "ranks = 2\nranks = 2\n", "config = x\n",
                          "plan-wait = 1s\n", "ranks = two\n"}) {
    const File other(bad);
    EXPECT_THAT(Program().Refusal({"--config", other.path().c_str()}), HasSubstr(other.path()))
        << bad;
  }
}

TEST(Config, BadValuesNameFlagSourceAndRemedy) {
  EXPECT_THAT(Program().Refusal({"--host-bytes=1XB"}), HasSubstr("--host-bytes (flag): size"));
  EXPECT_THAT(Program().Refusal({"--ranks=0"}), HasSubstr("\"0\" is no whole number from 1 to"));
  EXPECT_THAT(Program().Refusal({"--share=nan"}), HasSubstr("\"nan\" is no number from 0 to 1"));
  EXPECT_THAT(Program().Refusal({"--verify=maybe"}), HasSubstr("neither true nor false"));
  EXPECT_THAT(Program().Refusal({"--ranks"}), HasSubstr("needs a value: --ranks=N"));
  EXPECT_THAT(Program().Refusal({"--ranks", "--verify"}), HasSubstr("needs a value"));
  Program shadowed;  // A bad value is refused even where another source wins.
  shadowed.environment = {{"HYPERFRAMES_RANKS", "many"}};
  EXPECT_THAT(shadowed.Refusal({"--ranks=2"}), HasSubstr("environment HYPERFRAMES_RANKS"));
}

TEST(Config, RefusesContradictionsAndAcceptsRepetition) {
  EXPECT_THAT(Program().Refusal({"--ranks=2", "--ranks=3"}), HasSubstr("given twice"));
  EXPECT_THAT(Program().Refusal({"--verify", "--no-verify"}), HasSubstr("given twice"));
  EXPECT_TRUE(Program().Parse({"--ranks=2", "-n", "2"}).ok());
}

TEST(Config, AFailedParseLeavesTargetsAlone) {
  Program program;
  EXPECT_FALSE(program.Parse({"--ranks=2", "--host-bytes=x"}).ok());
  EXPECT_EQ(program.ranks, 1);
}

TEST(Config, AnUnreadableFileIsNamedWithItsErrno) {
  Program missing;
  const auto parsed = missing.Parse({"--config=/nonexistent/hf.conf"});
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(parsed.status().message()),
              HasSubstr("/nonexistent/hf.conf: No such file or directory (errno 2)"));
  Program folder;
  const auto of_folder = folder.Parse({"--config=/tmp"});
  EXPECT_EQ(of_folder.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(of_folder.status().message()), HasSubstr("/tmp: Is a directory"));
}

TEST(Config, BoundsValuesAndFiles) {
  const std::string huge = "--listen-address=" + std::string(100000, 'x');
  EXPECT_THAT(Program().Refusal({huge.c_str()}), HasSubstr("more than 65536"));
  const File file(std::string(2 << 20, '#'));
  EXPECT_THAT(Program().Refusal({"--config", file.path().c_str()}), HasSubstr("1048576"));
  const std::string flag = "--" + std::string(100000, 'x');
  EXPECT_THAT(Program().Refusal({flag.c_str()}), HasSubstr("unknown flag --xxx"));
}

TEST(Config, HelpListsEveryFlagWithItsDefault) {
  Program program;
  ASSERT_EQ(*program.Parse({"-h"}), Config::Outcome::kExit);
  EXPECT_THAT(program.out.str(),
              HasSubstr("--host-bytes=SIZE\n      memory to lend (default 1GiB)"));
  EXPECT_THAT(program.out.str(), HasSubstr("-n, --ranks=N"));
  Program versioned;
  ASSERT_EQ(*versioned.Parse({"--version"}), Config::Outcome::kExit);
  EXPECT_THAT(versioned.out.str(), HasSubstr("hfthing 0."));
}

}  // namespace
}  // namespace hyperframes
