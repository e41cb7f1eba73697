// What the facts mean: pure, so that every cause has a test with facts written down by hand.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_JUDGEMENT_H_
#define HYPERFRAMES_CLIENT_DOCTOR_JUDGEMENT_H_

#include <string>
#include <vector>

#include "client/doctor/facts.h"
#include "client/doctor/promises.h"

namespace hyperframes {
namespace doctor {

// A link below this share of its promise is left off: recomputing beats it.
constexpr double kBroken = 0.1;
// Below this one it is worth a look.
constexpr double kSlow = 0.5;

enum class Severity { kNote, kWarning, kBroken };

struct Finding {
  Severity severity = Severity::kNote;
  std::string subject;   // "GPU-1a2b -> host:local", "ulimit -l".
  std::string measured;  // "1.2GB/s", "64KiB".
  std::string promised;  // "63.0GB/s (PCIe 5 x16)"; empty where nothing is.
  std::string cause;     // The likely one, as a sentence without its full stop.
  std::string remedy;    // What to do, likewise.
  int path = -1;         // Into Facts::paths, where it is about one.
};

struct Diagnosis {
  std::vector<Finding> findings;  // Worst first, then in the order of the facts.
  bool healthy = true;            // Nothing is broken.
  std::string verdict;            // One sentence: "leave HyperFrames off: ..." or that all is well.
};

Diagnosis Judge(const Facts& facts);

// One line for people: subject, measured against promised, cause, remedy.
std::string Sentence(const Finding& finding);
// "1.2GB/s", "450GB/s": links are sold in powers of ten.
std::string SpeedText(double bytes_per_second);
// "GPU-1a2b3c4d -> host:local", "all-reduce GPU-1a2b3c4d -> GPU-5e6f7a8b".
std::string PathText(const PathFacts& path);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_JUDGEMENT_H_
