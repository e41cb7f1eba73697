#include <sys/ioctl.h>
#include <unistd.h>

#include <string>

#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/top.h"
#include "common/exit_code.h"
#include "common/status_macros.h"

namespace hyperframes {
namespace {

constexpr int kColumnsOfAFile = 120;
constexpr int kRowsOfAFile = 0;  // No limit.
constexpr absl::Duration kRedraw = absl::Seconds(1);
// Home, then the frame, then everything below it cleared: no flicker.
constexpr char kHome[] = "\x1b[H";
constexpr char kClearAll[] = "\x1b[2J";
constexpr char kClearLine[] = "\x1b[K\n";
constexpr char kClearBelow[] = "\x1b[J";

struct Screen {
  int columns = kColumnsOfAFile;
  int rows = kRowsOfAFile;
};

Screen CurrentScreen() {
  winsize size{};
  Screen screen;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return screen;
  if (size.ws_col > 0) screen.columns = size.ws_col;
  if (size.ws_row > 0) screen.rows = size.ws_row;
  return screen;
}

absl::StatusOr<std::string> Frame(Client* client) {
  HF_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, client->ListNodes({}));
  HF_ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, client->ListJobs({}));
  return RenderTop(client->address(), nodes, jobs, CurrentScreen().columns);
}

// Leftovers of a longer line of the last frame are cleared at each end of line.
std::string ForTerminal(const std::string& frame) {
  const Screen screen = CurrentScreen();
  std::string out = kHome;
  for (const char c : FitTo(frame, screen.columns, screen.rows)) {
    if (c == '\n') {
      out += kClearLine;
    } else {
      out += c;
    }
  }
  return out + kClearBelow;
}

}  // namespace

absl::StatusOr<int> RunTop(CommandLine* line) {
  bool once = false;
  line->config()->AddBool(&once, "once", "print one frame and end; the default without a terminal");
  HF_ASSIGN_OR_RETURN(const bool run, line->Parse(0, 0));
  if (!run) return kExitOk;
  HF_ASSIGN_OR_RETURN(const auto client, line->Connect());
  if (line->json()) {
    HF_ASSIGN_OR_RETURN(const v1::ListNodesResponse nodes, client->ListNodes({}));
    HF_RETURN_IF_ERROR(line->PrintJson(nodes));
    return kExitOk;
  }
  std::ostream* const out = line->out();
  absl::StatusOr<std::string> frame = Frame(client.get());
  HF_RETURN_IF_ERROR(frame.status());  // Nobody there at the start: say so and end.
  if (once || isatty(STDOUT_FILENO) == 0) {
    *out << *frame;
    return kExitOk;
  }
  *out << kClearAll;
  while (out->good()) {
    // A coordinator that goes away later may come back: its sentence is the frame meanwhile.
    *out << ForTerminal(frame.ok() ? *frame : std::string(frame.status().message()) + "\n");
    out->flush();
    absl::SleepFor(kRedraw);
    frame = Frame(client.get());
  }
  return kExitOk;
}

}  // namespace hyperframes
