#ifndef NEREUS_WORKER_TRAINER_BATCHES_H_
#define NEREUS_WORKER_TRAINER_BATCHES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nereus {

// Which examples one worker sees in each step: the data are shared out without
// overlap.
//
// Each epoch has a permutation of all examples, made of the seed and the epoch
// alone. Cut into pieces of workers * batch, each piece is one step's global
// batch, of which worker r takes [r * batch, (r + 1) * batch). So P workers
// with batch K / P see, step by step, what one worker with batch K sees. An
// incomplete last global batch is left out; the next epoch shuffles it back in.
class Batches {
 public:
  struct Options {
    int64_t examples = 0;
    int64_t batch = 0;  // Of each worker.
    int workers = 1;
    int rank = 0;
    uint64_t seed = 1;  // The same on every worker.
  };

  // Errors: kInvalidArgument, with the values: a field out of range, or fewer
  // examples than one global batch.
  static absl::StatusOr<Batches> Create(const Options& options);

  int64_t steps_per_epoch() const {
    return options_.examples / (options_.batch * options_.workers);
  }

  // Shuffles for `epoch`, 0-based. Before it, the order is that of the data.
  void StartEpoch(int64_t epoch);

  // This worker's examples of `step`, in [0, steps_per_epoch()), of the epoch
  // started last. Valid until the next StartEpoch.
  absl::Span<const uint32_t> Examples(int64_t step) const;

 private:
  explicit Batches(const Options& options);

  Options options_;
  std::vector<uint32_t> order_;
};

}  // namespace nereus

#endif  // NEREUS_WORKER_TRAINER_BATCHES_H_
