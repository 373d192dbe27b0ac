#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "worker/public/client.h"
#include "worker/trainer/dataset.h"
#include "worker/trainer/network.h"

namespace nereus {

// Progress of a training run, reported about once per `progress_interval`.
struct TrainProgress {
  // Current pass through the training images, from 1.
  int64_t epoch = 0;
  int64_t epochs = 0;  // Number of passes (TrainerOptions::epochs).
  int64_t step = 0;    // Number of steps done, over all passes.
  // Expected number of steps in all. It changes when workers join or leave.
  int64_t steps = 0;

  // Mean loss and speed of this worker since the last report. The mean is over
  // the steps with a finite loss; NaN if there is no such step.
  double loss = 0.0;
  double images_per_second = 0.0;
};

// Largest value of TrainerOptions::epochs.
inline constexpr int64_t kEpochsMax = 1000000;

// Options of Train.
struct TrainerOptions {
  int64_t epochs = 1;  // Passes over the training images.
  // Seed of the order of the examples. Must be equal on all workers.
  uint64_t seed = 1;

  // Receives the progress. May be empty. The training thread calls it at the
  // end of a step and begins the next step after it, so it must return soon.
  std::function<void(const TrainProgress&)> progress;
  absl::Duration progress_interval = absl::Seconds(1);

  // Returns the time since some fixed moment. Empty: a steady clock.
  std::function<absl::Duration()> now;

  // Time to sleep before each forward pass: makes this worker a straggler (a
  // slow worker), for tests.
  absl::Duration delay;
  // Time to sleep before the forward pass of a step if the step's number,
  // modulo the number of workers, is this worker's position: each worker is
  // late in turn.
  absl::Duration delay_in_turn;

  // Returns true if this worker must leave the job early: Train asks before
  // each step, besides StepInfo::should_leave. Empty: never.
  std::function<bool()> should_leave;

  // Returns OK, or kInvalidArgument with the field's name and value.
  absl::Status Validate() const;
};

// Result of Train for this worker.
struct TrainResult {
  int64_t steps = 0;       // Number of steps of this worker.
  int64_t last_step = -1;  // Number of this worker's last step.
  int64_t skipped = 0;     // Number of steps that the job skipped for a NaN.
  int64_t images = 0;      // Number of images that this worker trained on.
  int workers = 0;         // Number of workers in the last step.
  // True if training ended before the last pass was complete, because this
  // worker must leave early.
  bool leaves_early = false;
  // Mean loss of this worker over the last pass through the images; NaN if none
  // of its steps had a finite loss.
  double train_loss = 0.0;

  // Time from the begin of Train to its end, and parts of this time. Forward
  // includes the reading of the batch. Backward includes the pushes, and the
  // optimizer if it runs in this process.
  absl::Duration total;
  absl::Duration forward;
  absl::Duration backward;
  absl::Duration wait;

  // Adds the steps, images and times of an earlier call of Train, whose last
  // steps this one did again.
  void Add(const TrainResult& earlier);
};

// Optimizer state of a network, by layer, in the memory of its device. Used
// only if the worker updates the parameters.
using OptimizerState = std::vector<FloatArray>;

// Returns the bindings of the layers of `network` for a client. Fills `state`
// anew with zeros; it gets room for the optimizer with the largest state. The
// bindings point into `network` and `state`. Errors: those of Device::Allocate.
absl::StatusOr<std::vector<LayerBinding>> BindLayers(Network* network,
                                                     OptimizerState* state);

// Trains `network` on this worker's share of `data`, by algorithm 2 of Poseidon
// (Zhang et al., USENIX ATC 2017): each layer is pushed as soon as backward has
// its gradient, fully connected layers by their factors. The
// next forward pass waits for each layer when it needs it. Training ends with
// the step in which the images of all workers together complete the last pass
// (TrainerOptions::epochs), or when this worker must leave early. Train neither
// evaluates the network nor leaves the job.
//
// Errors: kInvalidArgument, bad options, or data that do not fit the network;
// kFailedPrecondition, the loss is not a finite number, and the job does not
// skip such steps (`--nan=skip`), or an update of this worker is not finite:
// Train has ended the job for all workers; errors of the client, unchanged.
//
// `client` was connected with BindLayers(network, state).
absl::StatusOr<TrainResult> Train(const TrainerOptions& options,
                                  const DataSplit& data, Network* network,
                                  OptimizerState* state, Client* client);

// Returns the share of `dataset` that `network` classifies correctly, in [0,
// 1].
double Accuracy(const Dataset& dataset, const Normalisation& normalisation,
                Network* network);

// Returns the CRC-32C of all parameters in layer order. Two workers with equal
// checksums hold the same bits.
uint32_t ParameterChecksum(const Network& network);

}  // namespace nereus
