#pragma once

#include <cstdint>
#include <vector>

#include "common/protocol/frame.h"
#include "common/protocol/frame_set.h"
#include "common/protocol/outbox.h"

namespace nereus {

// All values of one chunk as they arrive in frames: parameters, arrays of
// optimizer state, and the mean of the last round if workers run the optimizer.
// The primary sends them to the backup (ChunkReplica), or a worker sends them
// to the primary, which saves them (RoundSaver).
//
//   not begun --made as of a round--> begun --last frame, or Take--> complete
//
// Plain bookkeeping: the driver carries out the copying. Memory: the chunk's
// values, from the first frame on.
class ChunkCopy {
 public:
  // Makes a copy that has not begun: no frame is expected.
  ChunkCopy() = default;

  // Makes a copy that has begun: as of `round`, with `elements` values in each
  // part. `has_average`: the last part is the mean. In a simulation without
  // values, where the first payload is a Buffer::SizeOnly, the copy has no
  // memory either.
  ChunkCopy(int64_t round, int64_t elements, int state_arrays,
            bool has_average);

  bool begun() const { return arrived_.count() > 0; }
  int64_t round() const { return round_; }
  // Number of parts: the parameters, the arrays of state, the mean.
  int parts() const { return parts_; }

  // True if `frame` of `part` has arrived. REQUIRES: begun(), `part` and
  // `frame` in range.
  bool Has(int part, int64_t frame) const;

  // Takes these complete values by reference, in place of all frames.
  void Take(Buffer parameters, Buffer state);
  // Adds a frame. `payload` must live until the actions have been carried out.
  // REQUIRES: !Has(part, frame).
  void Add(int part, int64_t frame, const Buffer& payload, Outbox& out);

  // Bytes of the copy's memory; 0 before the first frame.
  int64_t held_bytes() const {
    return parameters_.bytes() + state_.bytes() + average_.bytes();
  }

  // True if all frames of all parts have arrived, or Take was called.
  bool complete() const {
    return begun() && (is_taken_ || arrived_.missing() == 0);
  }

  // Values that have arrived: all of them once complete(). `state` and
  // `average` may be empty.
  const Buffer& parameters() const { return parameters_; }
  const Buffer& state() const { return state_; }
  const Buffer& average() const { return average_; }

 private:
  // Returns the memory of a part.
  Buffer Place(int part) const;

  int64_t round_ = 0;  // Round as of which the values are.
  int64_t elements_ = 0;
  int state_arrays_ = 0;
  int parts_ = 0;
  FrameSet arrived_;       // Frames that have arrived, by part and frame.
  bool is_taken_ = false;  // True if Take was called.
  Buffer parameters_;
  Buffer state_;    // Arrays of optimizer state, one after the other.
  Buffer average_;  // Mean gradient of `round_`.
};

}  // namespace nereus
