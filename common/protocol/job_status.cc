#include "common/protocol/job_status.h"

#include "common/plan/scheme.h"
#include "common/plan/wire_type.h"

namespace nereus {

int64_t PlanStatus::Layer::bytes() const {
  int64_t elements = 0;
  switch (route.scheme) {
    case Scheme::kServer:
      elements = explanation.server_elements;
      break;
    case Scheme::kRing:
      elements = explanation.ring_elements;
      break;
    case Scheme::kDirect:
      elements = explanation.direct_elements;
      break;
    case Scheme::kFactor:
      elements = explanation.factor_elements.value_or(0);
      break;
  }
  return elements * WireBytes(route.wire);
}

}  // namespace nereus
