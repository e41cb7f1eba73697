#include "client/cli/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace hyperframes {
namespace {

constexpr std::chrono::seconds kLongestRun(30);

// Reads both ends until they are closed, or until the time is over.
void Drain(int out_fd, int err_fd, ProgramResult* result, pid_t child) {
  const auto deadline = std::chrono::steady_clock::now() + kLongestRun;
  pollfd ends[2] = {{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}};
  std::string* const texts[2] = {&result->out, &result->err};
  int open_ends = 2;
  while (open_ends > 0) {
    if (std::chrono::steady_clock::now() > deadline) kill(child, SIGKILL);
    if (poll(ends, 2, /*timeout_ms=*/200) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = read(ends[i].fd, buffer, sizeof buffer);
      if (got > 0) {
        texts[i]->append(buffer, static_cast<size_t>(got));
      } else {
        ends[i].fd = -1;
        --open_ends;
      }
    }
  }
}

}  // namespace

ProgramResult RunProgram(const std::string& path, const std::vector<std::string>& arguments,
                         const std::vector<std::pair<std::string, std::string>>& environment) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) std::abort();
  // Everything is built before the fork: a child of a threaded process may not allocate.
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  for (const auto& [name, value] : environment) {
    const std::string prefix = name + "=";
    std::vector<std::string> kept;
    for (const std::string& variable : variables) {
      if (variable.compare(0, prefix.size(), prefix) != 0) kept.push_back(variable);
    }
    kept.push_back(prefix + value);
    variables = kept;
  }
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  envp.reserve(variables.size() + 1);
  for (const std::string& variable : variables) envp.push_back(const_cast<char*>(variable.c_str()));
  envp.push_back(nullptr);

  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execve(path.c_str(), argv.data(), envp.data());
    _exit(127);
  }
  if (child < 0) std::abort();
  close(out[1]);
  close(err[1]);
  ProgramResult result;
  Drain(out[0], err[0], &result, child);
  close(out[0]);
  close(err[0]);
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace hyperframes
