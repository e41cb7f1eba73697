// Runs a program to its end, for tests of what people see.
#ifndef HYPERFRAMES_CLIENT_CLI_RUN_PROGRAM_H_
#define HYPERFRAMES_CLIENT_CLI_RUN_PROGRAM_H_

#include <string>
#include <utility>
#include <vector>

namespace hyperframes {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when a signal ended it.
  std::string out;
  std::string err;
};

// `arguments` without the program's own name; `environment` is added to this process's own. Killed
// after 30 s.
ProgramResult RunProgram(const std::string& path, const std::vector<std::string>& arguments,
                         const std::vector<std::pair<std::string, std::string>>& environment = {});

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CLI_RUN_PROGRAM_H_
