#include "coordinator/jobs/admission.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hyperframes {

ClusterView ViewCluster(const std::vector<Node>& nodes, const std::vector<JobBook::Record>& active,
                        const std::string& restarting) {
  std::set<std::string> usable;
  for (const Node& node : nodes) {
    for (const v1::GpuInfo& gpu : node.info.gpus()) {
      if (node.info.state() == v1::NODE_STATE_ALIVE && !gpu.unhealthy()) usable.insert(gpu.uuid());
    }
  }
  std::set<std::string> taken;
  for (const JobBook::Record& job : active) {
    const bool keeps = job->state() == v1::JOB_STATE_RESTARTING && job->id() != restarting &&
                       std::all_of(job->workers().begin(), job->workers().end(),
                                   [&](const v1::JobWorkerRecord& worker) {
                                     return usable.count(worker.gpu()) > 0;
                                   });
    for (const v1::JobWorkerRecord& worker : job->workers()) {
      if (keeps || !worker.released()) taken.insert(worker.gpu());
    }
  }
  for (const Node& node : nodes) {
    if (node.info.state() == v1::NODE_STATE_OFFLINE) continue;  // Its word is old.
    for (const v1::WorkerReport& worker : node.info.workers()) {
      if (worker.state() != v1::WORKER_STATE_EXITED) taken.insert(worker.gpu());
    }
  }
  ClusterView view;
  view.usable = static_cast<int>(usable.size());
  for (const Node& node : nodes) {
    ++view.nodes;
    view.alive_nodes += node.info.state() == v1::NODE_STATE_ALIVE ? 1 : 0;
    for (const v1::GpuInfo& gpu : node.info.gpus()) {
      ++view.gpus;
      if (taken.count(gpu.uuid()) > 0) {
        ++view.reserved;
      } else if (usable.count(gpu.uuid()) == 0) {
        ++view.unusable;
      } else {
        view.free.push_back(
            FreeGpu{node.info.node(), gpu.uuid(), gpu.index(), gpu.lent_bytes() > 0});
      }
    }
  }
  return view;
}

Verdict Admit(const v1::JobRecord& job, ClusterView* view) {
  Verdict verdict;
  const int ranks = job.spec().ranks();
  absl::StatusOr<std::vector<Seat>> seats = PlaceGang(ranks, job.spec().placement(), view->free);
  if (seats.ok()) {
    verdict.admitted = true;
    verdict.seats = std::move(seats).value();
    std::set<std::string> taken;
    for (const Seat& seat : verdict.seats) taken.insert(seat.gpu);
    view->free.erase(std::remove_if(view->free.begin(), view->free.end(),
                                    [&](const FreeGpu& gpu) { return taken.count(gpu.uuid) > 0; }),
                     view->free.end());
    view->reserved += ranks;
    return verdict;
  }
  verdict.reason = ranks > view->gpus ? "not_enough_gpus" : "waiting_for_gpus";
  verdict.message =
      absl::StrCat("waits for ", ranks - static_cast<int>(view->free.size()), " of ", ranks,
                   ranks == 1 ? " GPU (" : " GPUs (", view->gpus, " on ", view->nodes, " nodes, ",
                   view->alive_nodes, " ALIVE; ", view->reserved, " reserved by jobs, ",
                   view->unusable, " unhealthy or on nodes not ALIVE)");
  if (ranks > view->gpus) {
    absl::StrAppend(&verdict.message, "; add nodes");
    if (view->gpus > 0) {
      absl::StrAppend(&verdict.message, ", or submit it with at most ", view->gpus,
                      view->gpus == 1 ? " rank" : " ranks");
    }
  }
  return verdict;
}

namespace {

// Passed so long that nobody passes any more.
bool IsOutOfPatience(const v1::JobRecord& job, absl::Duration patience, absl::Time wall_now) {
  if (patience <= absl::ZeroDuration()) return true;
  if (job.passed_since_unix_s() == 0) return false;
  return wall_now >= absl::UnixEpoch() + absl::Seconds(job.passed_since_unix_s()) + patience;
}

}  // namespace

std::vector<Verdict> AdmitQueue(const std::vector<JobBook::Record>& queued, absl::Duration patience,
                                absl::Time wall_now, ClusterView* view) {
  std::vector<Verdict> verdicts;
  size_t ahead = 0;
  size_t head = queued.size();  // None yet.
  std::string held;
  for (size_t i = 0; i < queued.size(); ++i) {
    const v1::JobRecord& job = *queued[i];
    verdicts.push_back(Admit(job, view));
    if (verdicts[i].admitted) {
      if (head < i) verdicts[head].passed = true;
      continue;
    }
    absl::StrAppend(&verdicts[i].message, "; ", ahead, ahead == 1 ? " job" : " jobs", " ahead",
                    held);
    ++ahead;
    if (head < queued.size() || job.spec().ranks() > view->usable) continue;
    head = i;
    if (!IsOutOfPatience(job, patience, wall_now)) continue;
    held = absl::StrCat("; ", view->free.size(), " free held for job ", job.id(),
                        ", which has been passed for ", absl::FormatDuration(patience));
    absl::StrAppend(&verdicts[i].message, "; ", view->free.size(), " free held for it");
    view->free.clear();
  }
  return verdicts;
}

}  // namespace hyperframes
