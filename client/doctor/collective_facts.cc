#include "client/doctor/collective_facts.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/doctor/collective_lines.h"
#include "client/doctor/collective_process.h"
#include "common/bounded_command.h"
#include "common/mutex.h"
#include "common/unique_fd.h"

namespace hyperframes {
namespace doctor {
namespace {

// It is told to be done earlier, and ended later, than at the deadline.
constexpr absl::Duration kToAnswer = absl::Milliseconds(50);
constexpr absl::Duration kPatience = absl::Milliseconds(150);
constexpr absl::Duration kToEnd = absl::Seconds(1);

std::vector<const GpuFacts*> VisibleGpus(const Facts& facts) {
  std::vector<const GpuFacts*> gpus;
  for (const GpuFacts& gpu : facts.gpus) {
    if (!gpu.simulated && gpu.visible) gpus.push_back(&gpu);
  }
  return gpus;
}

std::string LinkOf(const Facts& facts) {
  const bool slower = std::any_of(facts.paths.begin(), facts.paths.end(), [](const PathFacts& p) {
    return p.kind == PathKind::kPeer && p.link != "nvlink";
  });
  return slower ? "pcie" : "nvlink";
}

// Of a collective that was never reported, or of all of them.
void Unfinished(const CollectiveAnswer& answer, const absl::Status& ended, absl::Duration time,
                PathFacts* path) {
  const absl::Duration at_it = time - answer.since;
  const std::string so_long = absl::FormatDuration(absl::Trunc(at_it, absl::Milliseconds(100)));
  if (absl::IsDeadlineExceeded(answer.status)) {
    path->status = absl::DeadlineExceededError(absl::StrCat("NCCL hangs while ", answer.doing));
  } else if (!answer.status.ok()) {
    path->status = answer.status;
    const bool full = absl::IsOutOfRange(answer.status);
    path->out_of_time = full;
    // That there is no NCCL, or an old one, says nothing of the links.
    path->untried = !full && answer.doing == "opening NCCL";
  } else if (absl::IsInternal(ended)) {
    path->status = absl::InternalError(
        absl::StrCat("NCCL ended its process while ", answer.doing, ": ", ended.message()));
  } else if (ended.code() == absl::StatusCode::kNotFound) {
    path->status = absl::UnavailableError(ended.message());
    path->untried = true;
  } else if (at_it > answer.longest) {
    path->status = absl::DeadlineExceededError(
        absl::StrCat("NCCL hangs while ", answer.doing, ": it was ended after ", so_long));
  } else {
    path->status =
        absl::CancelledError(absl::StrCat("NCCL was still ", answer.doing, " when time was up"));
    path->untried = true;
  }
}

}  // namespace

void AddCollectives(const std::string& lines, const absl::Status& ended, absl::Duration time,
                    Facts* facts) {
  const std::vector<const GpuFacts*> gpus = VisibleGpus(*facts);
  if (gpus.size() < 2) return;
  const CollectiveAnswer answer = ReadCollectiveLines(lines);
  const std::string link = LinkOf(*facts);
  const std::string from = gpus.front()->uuid;
  const std::string to = gpus.back()->uuid;
  for (const PathKind kind : {PathKind::kAllReduce, PathKind::kSendReceive}) {
    PathFacts path;
    path.kind = kind;
    const auto found =
        std::find_if(answer.measured.begin(), answer.measured.end(),
                     [kind](const PathFacts& measured) { return measured.kind == kind; });
    if (found == answer.measured.end()) {
      Unfinished(answer, ended, time, &path);
    } else {
      path = *found;
      path.out_of_time = absl::IsOutOfRange(path.status);
    }
    path.from = from;
    path.to = to;
    path.link = link;
    facts->paths.push_back(std::move(path));
  }
}

// Shared with a thread that may outlive the source.
struct CollectiveSource::Process {
  Mutex mutex;
  CondVar changed;
  bool done HF_GUARDED_BY(mutex) = false;
  absl::Status ended HF_GUARDED_BY(mutex);
  std::string lines HF_GUARDED_BY(mutex);
  UniqueFd orders;    // Its input.
  UniqueFd patience;  // Closed: it is killed.

  void Start(std::vector<std::string> command, const std::shared_ptr<Process>& self);
  bool WaitFor(absl::Duration most) {
    MutexLock lock(&mutex);
    return changed.WaitFor(&mutex, most, [this] {
      mutex.AssertHeld();
      return done;
    });
  }
};

void CollectiveSource::Process::Start(std::vector<std::string> command,
                                      const std::shared_ptr<Process>& self) {
  int input[2] = {-1, -1};  // A socket: writing to who has ended raises no signal.
  int stop[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) != 0 ||
      pipe2(stop, O_CLOEXEC) != 0) {
    MutexLock lock(&mutex);
    done = true;
    ended = absl::NotFoundError("no pipe to the process that measures collectives");
    return;
  }
  orders.reset(input[1]);
  patience.reset(stop[1]);
  BoundedCommand bounded;
  bounded.arguments = std::move(command);
  bounded.deadline = absl::Seconds(kLongestCollectivesSeconds);
  bounded.input = input[0];
  bounded.stop = stop[0];
  std::thread([self, bounded] {
    const UniqueFd read_end(bounded.input);
    const UniqueFd stop_end(bounded.stop);
    std::string output;
    const absl::Status how = RunBounded(bounded, &output);
    MutexLock lock(&self->mutex);
    self->done = true;
    self->ended = how;
    self->lines = std::move(output);
    self->changed.NotifyAll();
  }).detach();
}

CollectiveSource::CollectiveSource(std::vector<std::string> command, const Clock* clock)
    : clock_(clock), started_(clock->Now()), process_(std::make_shared<Process>()) {
  process_->Start(std::move(command), process_);
}

CollectiveSource::~CollectiveSource() {
  process_->patience.reset();
  process_->WaitFor(kToEnd);
}

void CollectiveSource::Collect(absl::Time deadline, Facts* facts) {
  if (!facts->driver.ok() || VisibleGpus(*facts).size() < 2) return;
  const std::string by = absl::StrCat(absl::ToUnixNanos(deadline - kToAnswer));
  if (process_->orders.valid()) {
    // There is room for it, so nothing blocks; whoever has ended needs no answer.
    send(process_->orders.get(), by.data(), by.size(), MSG_NOSIGNAL);
    process_->orders.reset();
  }
  bool done = process_->WaitFor(deadline + kPatience - clock_->Now());
  const absl::Duration time = clock_->Now() - started_;
  process_->patience.reset();
  done = done || process_->WaitFor(kToEnd);
  std::string lines;
  absl::Status ended = absl::CancelledError("it does not even end");
  {
    MutexLock lock(&process_->mutex);
    lines = process_->lines;
    if (done) ended = process_->ended;
  }
  AddCollectives(lines, ended, time, facts);
}

}  // namespace doctor
}  // namespace hyperframes
