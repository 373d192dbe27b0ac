#include "common/protocol/job_status.h"

#include "common/plan/scheme.h"
#include "common/plan/wire_type.h"

namespace nereus {

int64_t PlanStatus::Layer::bytes() const {
  int64_t elements = explanation.server_elements;
  if (route.scheme == Scheme::kRing) elements = explanation.ring_elements;
  if (route.scheme == Scheme::kFactor) {
    elements = explanation.factor_elements.value_or(0);
  }
  return elements * WireBytes(route.wire);
}

}  // namespace nereus
