#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/logging.h"
#include "common/flags/flags.h"
#include "worker/public/client_options.h"

namespace nereus {

// Images to train and test with.
struct DataFlags {
  std::string folder;    // Folder of IDX files. Empty: generated images.
  double holdout = 0.2;  // Share to test with, if there is no test set.
  int64_t limit = 0;     // Number of images of each set to use; 0: all.
};

// Replay (replay.h): the worker's device is busy for known times instead
// of training.
struct ReplayFlags {
  std::string times_file;  // Compute times of the layers. Empty: no replay.
  int64_t steps = 100;     // Number of steps of the job.
  bool spins = false;      // Use a core for these times, instead of sleeping.
  bool waits_at_end = false;  // ReplayOptions::waits_at_end.
};

// Artificial delays before each forward, for tests of stragglers.
struct StragglerFlags {
  double delay_seconds = 0.0;  // Delay in each step.
  // Delay in a step if its number, modulo the number of workers, is this
  // worker's position: each worker is late in turn.
  double in_turn_seconds = 0.0;
};

// Command line of nereus-worker.
struct WorkerFlags {
  ClientOptions client;
  JobSpec spec;  // Optimizer of a --standalone worker.
  std::string model = "cnn";
  std::string device = "cpu";  // "cpu", or "cuda:N".
  std::string trace;           // File for a GPU's timeline. Empty: none.
  LogFlags log;
  DataFlags data;
  ReplayFlags replay;
  StragglerFlags straggler;
  int64_t batch = 32;  // Images of this worker in a step.
  int64_t epochs = 8;  // Passes through the training images.
  uint64_t seed = 1;
  int threads = 1;          // Threads that compute, on a CPU.
  bool standalone = false;  // Train alone, without a job.
  bool json = false;        // Report as JSON objects on standard output.

  bool on_gpu() const { return device != "cpu"; }
  bool is_replay() const { return !replay.times_file.empty(); }
};

// Returns N of "cuda:N", or nothing if `device` is not of that form.
std::optional<int> GpuNumber(absl::string_view device);

// Reads the command line and the environment into `flags`. Returns the exit
// code if the program must end here, after it has printed help or an error;
// otherwise -1.
int ReadWorkerFlags(int argc, char** argv, WorkerFlags& flags);

}  // namespace nereus
