#pragma once

#include <cstdint>

#include "common/protocol/replica_sample.h"

namespace nereus {

// Decides of which rounds a worker samples its replica (replica_sample.h), so
// that the coordinator can compare the replicas about once a second, whether a
// step takes a millisecond or a minute. Workers do not agree on these rounds by
// messages. A worker samples the rounds that are multiples of its stride, a
// power of two: the largest one that is at most the number of steps since its
// last heartbeat. So workers of equal pace sample the same rounds. Of two
// workers with different strides, one samples all rounds that the other one
// samples.
//
// Pure. Used by one WorkerMachine.
class SampleSchedule {
 public:
  // `layers`: number of layers of the model. `begun_step`: last step that the
  // worker has begun. Chooses no rounds before the first heartbeat.
  SampleSchedule(int layers, int64_t begun_step)
      : layers_(layers), beat_step_(begun_step) {}

  // Notes that a heartbeat is due, and the last step that the worker has begun.
  void OnHeartbeat(int64_t begun_step);

  // True if the worker samples `layer` as of `round`. If more rounds were
  // chosen since the last heartbeat than are expected, because steps have
  // become faster, doubles the stride.
  bool Chooses(int layer, int64_t round);

  int64_t stride() const { return stride_; }  // 0: no heartbeat yet.

 private:
  const int layers_;
  int64_t beat_step_;          // Last step as of the last heartbeat.
  int64_t stride_ = 0;         // See stride().
  int64_t newest_round_ = -1;  // Newest round that was chosen.
  int chosen_since_beat_ = 0;  // Rounds chosen since the last heartbeat.
};

}  // namespace nereus
