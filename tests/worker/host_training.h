#pragma once

#include "common/base/status.h"
#include "worker/trainer/network_client.h"
#include "worker/trainer/trainer.h"

namespace nereus {

// Trains a network on the CPU.
inline absl::StatusOr<TrainResult> Train(const TrainerOptions& options,
                                         const DataSplit& data,
                                         Network* network,
                                         OptimizerState* state,
                                         Client* client) {
  return Train(options, data,
               MakeHostNetworkClient(network, state, client).get());
}

}  // namespace nereus
