// hfctl: what people say to a coordinator. Finds the command, runs it, turns its status into a
// sentence on stderr and an exit code.
#include <csignal>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/commands.h"
#include "common/config_text.h"
#include "common/exit_code.h"
#include "common/protocol_version.h"

namespace hyperframes {

const std::vector<Command>& Commands() {
  static const auto* const commands = new std::vector<Command>{
      {"nodes", "", "Nodes with their state, memory lent, workers and network.", &RunNodes},
      {"gpus", "[NODE]", "GPUs with bytes used, lent and kept in reserve.", &RunGpus},
      {"doctor", "[--host-devices TEXT]",
       "Whether this machine's links do what they promise; needs no coordinator.", &RunDoctor},
      {"submit", "JOB.json | [--name X] [--ranks N] [--env K=V]... [--wait] -- COMMAND ...",
       "Queue a job from a file or from flags.", &RunSubmit},
      {"jobs", "[--limit N]", "Jobs, newest first.", &RunJobs},
      {"job describe", "ID", "One job with its workers.", &RunJobDescribe},
      {"job logs", "ID [--rank N] [--attempt N | --previous] [-f]", "What one rank printed.",
       &RunJobLogs},
      {"job wait", "ID [--timeout 60s]",
       "Wait for the end: exit code 0 for SUCCEEDED, 1 otherwise, 124 timed out.", &RunJobWait},
      {"job cancel", "ID [--signal]", "End a job.", &RunJobCancel},
      {"job preempt", "ID [--signal]", "Give a job's GPUs to something else: it saves and ends.",
       &RunJobPreempt},
      {"plan", "JOB", "Bytes per tier, predicted peak and step time of each rank.", &RunPlan},
      {"explain", "JOB [BLOCK]", "Why each block's frames wait where they do.", &RunExplain},
      {"checkpoints", "[--job ID] [--directory DIR] [--all] [--limit N]",
       "Committed checkpoints, newest first; --all: aborted ones and those under way too.",
       &RunCheckpoints},
      {"top", "[--once]", "Live water levels of GPUs, hosts and workers.", &RunTop},
  };
  return *commands;
}

namespace {

void PrintHelp(std::ostream* out) {
  *out << "hfctl: what people say to a HyperFrames coordinator.\n\n"
          "Usage: hfctl COMMAND [flags]\n\nCommands:\n";
  for (const Command& command : Commands()) {
    *out << absl::StrFormat("  %-14s %s\n", command.name, command.summary);
  }
  *out << "\nFlags of every command:\n"
          "  --coordinator HOST:PORT   default 127.0.0.1:7461, or HYPERFRAMES_COORDINATOR\n"
          "  -o, --output table|json   default table\n"
          "  --timeout DURATION        default 10s; none for commands that wait\n\n"
          "`hfctl help COMMAND` shows one command.\n"
          "Exit codes: 0 ok, 1 failed, 2 bad usage, 3 coordinator unreachable, 4 not found,\n"
          "5 refused, 75 try again, 124 wait timed out.\n";
}

// What was typed, taken apart: the words of the command, and everything else in its order.
struct Typed {
  std::vector<std::string> words;
  std::vector<std::string> rest;
};

bool IsFamily(const std::string& word) { return word == "job"; }

Typed TakeApart(const std::vector<std::string>& arguments) {
  static const auto* const take_a_value = new std::set<std::string>{
      "--coordinator", "--output", "-o", "--timeout", "--config", "--host-devices"};
  Typed typed;
  size_t wanted = 1;
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    const bool is_flag = argument.size() > 1 && argument[0] == '-';
    if (argument == "--" || typed.words.size() == wanted) {
      typed.rest.insert(typed.rest.end(), arguments.begin() + static_cast<std::ptrdiff_t>(at),
                        arguments.end());
      break;
    }
    if (is_flag) {
      typed.rest.push_back(argument);
      if (take_a_value->count(argument) == 1 && at + 1 < arguments.size()) {
        typed.rest.push_back(arguments[++at]);
      }
      continue;
    }
    typed.words.push_back(argument);
    if (typed.words.size() == 1 && IsFamily(argument)) wanted = 2;
    if (typed.words.size() == 1 && argument == "help") wanted = 3;
  }
  return typed;
}

const Command* Find(const std::string& name) {
  for (const Command& command : Commands()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

int Complain(const std::string& sentence) {
  std::cerr << "hfctl: " << sentence << "\n";
  return kExitUsage;
}

int UnknownCommand(const std::string& name) {
  std::vector<std::string> names = {"help"};
  for (const Command& command : Commands()) names.push_back(command.name);
  if (IsFamily(name)) {
    return Complain(
        "`job` needs one of describe, logs, wait, cancel, preempt; e.g. hfctl job logs ID -f");
  }
  std::string near = NearestName(name, names);
  // "logs" is what somebody means who forgot the family.
  if (near.empty() && Find("job " + name) != nullptr) near = "job " + name;
  return Complain(absl::StrCat("no command \"", name.substr(0, 64), "\"",
                               near.empty() ? "; `hfctl help` lists them"
                                            : absl::StrCat("; did you mean `hfctl ", near, "`?")));
}

int Run(const std::string& name, std::vector<std::string> arguments) {
  const Command* const command = Find(name);
  if (command == nullptr) return UnknownCommand(name);
  CommandLine line(*command, std::move(arguments), &std::cout);
  const absl::StatusOr<int> code = command->run(&line);
  std::cout.flush();
  if (code.ok()) return *code;
  std::cerr << "hfctl: " << code.status().message() << "\n";
  return ExitCode(code.status());
}

int Main(const std::vector<std::string>& arguments) {
  if (MeasuresCollectives(arguments)) return kExitOk;
  const Typed typed = TakeApart(arguments);
  if (typed.words.empty()) {
    const std::string first = typed.rest.empty() ? "" : typed.rest[0];
    if (first == "--version") {
      std::cout << "hfctl " << kReleaseVersion << "\n";
      return kExitOk;
    }
    const bool asked = first == "--help" || first == "-h";
    PrintHelp(asked ? &std::cout : &std::cerr);
    return asked ? kExitOk : kExitUsage;
  }
  if (typed.words[0] == "help") {
    if (typed.words.size() == 1) {
      PrintHelp(&std::cout);
      return kExitOk;
    }
    return Run(absl::StrJoin(typed.words.begin() + 1, typed.words.end(), " "), {"--help"});
  }
  return Run(absl::StrJoin(typed.words, " "), typed.rest);
}

}  // namespace
}  // namespace hyperframes

int main(int argc, char** argv) {
  // `hfctl job logs -f | head` ends by a failed write, with its exit code, and not by a signal.
  std::signal(SIGPIPE, SIG_IGN);
  return hyperframes::Main(std::vector<std::string>(argv + 1, argv + argc));
}
