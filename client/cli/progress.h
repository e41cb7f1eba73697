// What hfctl waits for, once it takes longer than two seconds: silence looks like a hang. Nothing
// for shorter waits, then a line at most every two seconds; on a terminal one line is written over
// itself. Never on stdout, which is the command's own.
#ifndef HYPERFRAMES_CLIENT_CLI_PROGRESS_H_
#define HYPERFRAMES_CLIENT_CLI_PROGRESS_H_

#include <ostream>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace hyperframes {

constexpr absl::Duration kProgressInterval = absl::Seconds(2);

// Thread-safe.
class Progress {
 public:
  struct Options {
    const Clock* clock = MonotonicClock();
    std::ostream* out = nullptr;  // Null: silent.
    bool terminal = false;
  };

  // stderr, unless HYPERFRAMES_PROGRESS=off.
  static Options ForPeople();

  // `what` begins the line: "waiting for job-1".
  Progress(std::string what, Options options);
  ~Progress();  // Ends a line that stands on a terminal.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What the next line says in brackets: "RUNNING: 3 of 4 ranks have started".
  void SetDetail(std::string detail);

  // Writes a line when two seconds have passed since the last, or since the beginning.
  void Look();

 private:
  const std::string what_;
  const Options options_;
  const absl::Time began_;
  Mutex mutex_;
  absl::Time said_ HF_GUARDED_BY(mutex_);
  std::string detail_ HF_GUARDED_BY(mutex_);
  size_t width_ HF_GUARDED_BY(mutex_) = 0;  // Of the line on the terminal; 0: there is none.
};

// Looks at a Progress every two seconds from a thread of its own, while this thread is in a call
// that cannot report.
class Watched {
 public:
  // `progress` outlives it.
  explicit Watched(Progress* progress);
  ~Watched();
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  Progress* const progress_;
  Mutex mutex_;
  CondVar changed_;
  bool ended_ HF_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses what stands above.
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_CLI_PROGRESS_H_
