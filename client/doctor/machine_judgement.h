// What the facts mean that are about no single path: driver, limits, the GPUs themselves.
#ifndef HYPERFRAMES_CLIENT_DOCTOR_MACHINE_JUDGEMENT_H_
#define HYPERFRAMES_CLIENT_DOCTOR_MACHINE_JUDGEMENT_H_

#include <vector>

#include "client/doctor/facts.h"
#include "client/doctor/judgement.h"

namespace hyperframes {
namespace doctor {

// In the order: driver, host, each GPU.
std::vector<Finding> JudgeMachine(const Facts& facts);

}  // namespace doctor
}  // namespace hyperframes

#endif  // HYPERFRAMES_CLIENT_DOCTOR_MACHINE_JUDGEMENT_H_
