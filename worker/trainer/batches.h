#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"

namespace nereus {

// Order of the training examples: an endless sequence, the same on every
// worker. Each pass through the examples has a permutation of its own, which
// depends on the seed and the number of the pass only.
//
// Each step takes the next range of the sequence, as long as the batches of all
// workers together. Each worker takes one batch of this range, and no two
// workers take the same batch. If a pass ends within the range, an example can
// occur twice in the step. So P workers with batch K see, step by step, the
// examples that one worker with batch P x K sees.
class Batches {
 public:
  struct Options {
    int64_t examples = 0;  // Number of training examples.
    // Number of examples of this worker in a step; at most `examples`.
    int64_t batch = 0;
    uint64_t seed = 1;  // Must be equal on all workers.
  };

  // Errors: kInvalidArgument, a field out of range, with its value.
  static absl::StatusOr<Batches> Create(const Options& options);

  // Returns the indices of the examples at [first, first + batch) of the
  // sequence, first >= 0. Valid until the next call.
  absl::Span<const uint32_t> Examples(int64_t first);

 private:
  explicit Batches(const Options& options);

  // Writes the permutation of `pass` to order_.
  void Shuffle(int64_t pass);

  const Options options_;
  int64_t pass_ = -1;            // Pass of order_.
  std::vector<uint32_t> order_;  // Permutation of the examples.
  std::vector<uint32_t> batch_;  // Result of Examples.
};

}  // namespace nereus
