#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/trainer/dataset.h"
#include "worker/trainer/network.h"
#include "worker/trainer/replica.h"

namespace nereus {

// How training goes, about once per `progress_interval`.
struct TrainProgress {
  int64_t epoch = 0;  // 1-based.
  int64_t epochs = 0;
  int64_t step = 0;  // Steps done, over all epochs.
  int64_t steps = 0;

  // Since the progress before: this worker's mean loss and speed.
  double loss = 0.0;
  double images_per_second = 0.0;
};

inline constexpr int64_t kEpochsMax = 1000000;

struct TrainerOptions {
  int64_t epochs = 1;
  uint64_t seed = 1;  // Of the order of the examples: the same on all workers.

  // May be empty. Called in the middle of training: must return soon.
  std::function<void(const TrainProgress&)> progress;
  absl::Duration progress_interval = absl::Seconds(1);

  // Time since any one moment; a steady clock by default.
  std::function<absl::Duration()> now;

  // Slept before each forward, and before those of the steps that are this
  // worker's position modulo the number of workers: a straggler, for tests.
  absl::Duration delay;
  absl::Duration delay_in_turn;

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

struct TrainResult {
  int64_t steps = 0;
  int64_t last_step = -1;   // The job's number of the last of them.
  int64_t skipped = 0;      // Steps that the votes on NaN have dropped.
  int64_t images = 0;       // Of this worker.
  int workers = 0;          // In the last step.
  double train_loss = 0.0;  // This worker's mean over the last epoch.

  // From the first step's start to the last one's end, and its parts. Forward
  // has the reading of the batch; backward the pushes, and the optimizer if it
  // runs in this process.
  absl::Duration total;
  absl::Duration forward;
  absl::Duration backward;
  absl::Duration wait;
};

// Trains the replica's network on this worker's share of `data`, by Poseidon's
// algorithm 2 (Zhang et al., USENIX ATC 2017): each layer is pushed as backward
// produces its gradient, fully connected ones by their factors, and a step ends
// when all layers are synchronised. It ends with the first step at or after the
// last example of the last epoch, whoever was there for how long.
//
// Evaluates nothing, and doesn't leave the job.
//
// Errors: kInvalidArgument, bad options, or data that don't fit the
// network; kOutOfRange, a loss that is not a finite number, naming step and
// epoch; any error of the client, as it is.
absl::StatusOr<TrainResult> Train(const TrainerOptions& options,
                                  const DataSplit& data, Replica* replica);

// The share of `dataset` that `network` classifies correctly, in [0, 1].
double Accuracy(const Dataset& dataset, const Normalisation& normalisation,
                Network* network);

// CRC-32C of all parameters in layer order, as they lie in memory: equal on two
// workers if they hold the same bits.
uint32_t ParameterChecksum(const Network& network);

}  // namespace nereus
