#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nereus {

// Which examples come when: an endless sequence, the same on every worker, that
// goes through all examples in one order after the other. Each pass has a
// permutation of its own, made of the seed and the pass alone.
//
// Workers share the sequence out without overlap: of a step's piece, as long as
// all their batches, each takes its batch. So P workers with batch K / P see,
// step by step, what one worker with batch K sees.
class Batches {
 public:
  struct Options {
    int64_t examples = 0;
    int64_t batch = 0;  // Of this worker; up to `examples`.
    uint64_t seed = 1;  // The same on every worker.
  };

  // Errors: kInvalidArgument, a field out of range, with its value.
  static absl::StatusOr<Batches> Create(const Options& options);

  // The examples at [first, first + batch) of the sequence, first >= 0. Valid
  // until the next call.
  absl::Span<const uint32_t> Examples(int64_t first);

 private:
  explicit Batches(const Options& options);

  void Shuffle(int64_t pass);

  const Options options_;
  int64_t pass_ = -1;  // That order_ is of.
  std::vector<uint32_t> order_;
  std::vector<uint32_t> batch_;
};

}  // namespace nereus
