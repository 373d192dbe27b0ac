#pragma once

#include <cstdint>
#include <vector>

#include "common/protocol/frame.h"
#include "common/protocol/outbox.h"

namespace nereus {

// All that a server has of one chunk, on its way to another one in frames:
// parameters, arrays of the optimizer's state, and the last round's average
// where there is one. Copying is an action for the driver.
class ChunkCopy {
 public:
  // Nothing is on its way.
  ChunkCopy() = default;

  // `elements` of each part, as of `round`. Like the first payload, memory may
  // be sizes only.
  ChunkCopy(int64_t round, int64_t elements, int state_arrays,
            bool has_average);

  bool begun() const { return !arrived_.empty(); }
  int64_t round() const { return round_; }
  int parts() const { return parts_; }

  // Whether a frame of a part is in. REQUIRES: begun(), both in range.
  bool Has(int part, int64_t frame) const;

  // Adds a frame; `payload` need only live until the actions have been carried
  // out. REQUIRES: !Has(part, frame).
  void Add(int part, int64_t frame, const Buffer& payload, Outbox& out);

  int64_t held_bytes() const {
    return parameters_.bytes() + state_.bytes() + average_.bytes();
  }

  bool complete() const { return begun() && missing_ == 0; }

  // Whole once complete. `state` and `average` may be empty.
  const Buffer& parameters() const { return parameters_; }
  const Buffer& state() const { return state_; }
  const Buffer& average() const { return average_; }

 private:
  Buffer Place(int part) const;

  int64_t round_ = 0;
  int64_t elements_ = 0;
  int state_arrays_ = 0;
  int parts_ = 0;
  std::vector<bool> arrived_;  // By part and frame.
  int64_t missing_ = 0;        // Count of false in arrived_.
  Buffer parameters_;
  Buffer state_;
  Buffer average_;
};

}  // namespace nereus
