#include "client/c/unfit_links.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/doctor/host_facts.h"
#include "client/doctor/judgement.h"
#include "client/doctor/nvml_facts.h"

namespace hyperframes {

std::string UnfitLinksJson(std::vector<doctor::PathFacts> paths, bool real) {
  doctor::Facts facts;
  facts.paths = std::move(paths);
  doctor::HostFactSource().Collect(absl::InfiniteFuture(), &facts);
  if (real) doctor::NvmlFactSource().Collect(absl::InfiniteFuture(), &facts);
  nlohmann::json unfit = nlohmann::json::array();
  for (const doctor::Finding& finding : doctor::Judge(facts).findings) {
    if (finding.path < 0 || finding.severity != doctor::Severity::kBroken) continue;
    const doctor::PathFacts& path = facts.paths[static_cast<size_t>(finding.path)];
    unfit.push_back({{"from", path.from},
                     {"to", path.to},
                     {"sentence", absl::StrCat("leave HyperFrames off ", doctor::Sentence(finding),
                                               " (hfctl doctor looks at all of the machine)")}});
  }
  return unfit.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace hyperframes
