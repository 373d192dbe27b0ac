#pragma once

namespace nereus {

// Removes the variables that Kubernetes sets in every pod for a Service whose
// name begins with "nereus": for a Service nereus-data these are
// NEREUS_DATA_PORT=tcp://10.0.0.1:7001, which would be the value of
// --data-port, NEREUS_DATA_SERVICE_HOST, NEREUS_DATA_PORT_7001_TCP_ADDR and
// others. (A pod with enableServiceLinks: false has none of them.) REQUIRES:
// the process has no other thread that uses its environment.
void DropServiceVariables();

}  // namespace nereus
