// The agent's HTTP pages.
#ifndef HYPERFRAMES_AGENT_SERVICE_STATUS_PAGES_H_
#define HYPERFRAMES_AGENT_SERVICE_STATUS_PAGES_H_

#include <atomic>

#include "agent/service/coordinator_link.h"
#include "agent/service/link_survey.h"
#include "agent/service/node.h"
#include "common/http_server.h"

namespace hyperframes {

// /metrics; /livez: 200 while the process answers; /readyz: 200 once the coordinator knows this
// agent, else 503 with the reason; /statusz: devices, workers and leases as JSON, without secrets.
// The arguments outlive the server; the link may still be null, and `survey` too.
HttpServer::Handlers StatusPages(Node* node, const std::atomic<CoordinatorLink*>* link,
                                 const LinkSurvey* survey);

}  // namespace hyperframes

#endif  // HYPERFRAMES_AGENT_SERVICE_STATUS_PAGES_H_
