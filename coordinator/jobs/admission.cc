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
  ClusterView view;
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
  const int free = static_cast<int>(view->free.size());
  verdict.message = absl::StrCat(
      "needs ", ranks, ranks == 1 ? " GPU, " : " GPUs, ", free, " free: ", ranks - free,
      " missing (", view->gpus, " on ", view->nodes, " nodes, ", view->alive_nodes, " ALIVE; ",
      view->reserved, " reserved by jobs, ", view->unusable, " unhealthy or on nodes not ALIVE)");
  if (ranks > view->gpus) {
    absl::StrAppend(&verdict.message, "; add nodes");
    if (view->gpus > 0) {
      absl::StrAppend(&verdict.message, ", or submit it with at most ", view->gpus,
                      view->gpus == 1 ? " rank" : " ranks");
    }
  }
  return verdict;
}

}  // namespace hyperframes
