#include "worker/trainer/batches.h"

#include <limits>
#include <numeric>
#include <utility>

#include "common/base/logging.h"
#include "common/base/random.h"
#include "common/base/status.h"

namespace nereus {

absl::StatusOr<Batches> Batches::Create(const Options& options) {
  constexpr int64_t kExamplesMax = std::numeric_limits<uint32_t>::max();
  if (options.examples < 1 || options.examples > kExamplesMax) {
    return InvalidArgumentError("examples is ", options.examples,
                                ", must be in [1, ", kExamplesMax, "]");
  }
  if (options.batch < 1 || options.batch > options.examples) {
    return InvalidArgumentError("batch is ", options.batch, ", must be in [1, ",
                                options.examples,
                                "], the number of images to train with");
  }
  return Batches(options);
}

Batches::Batches(const Options& options)
    : options_(options), order_(options.examples), batch_(options.batch) {}

void Batches::Shuffle(int64_t pass) {
  // A batch lies in one pass, or in two that follow each other. So most calls
  // return here.
  if (pass == pass_) return;
  pass_ = pass;
  // The first value of the seed's generator, plus the pass, seeds the generator
  // that shuffles. So neighbouring seeds have no permutation in common.
  Random seeds(options_.seed);
  Random random(seeds.Next() + static_cast<uint64_t>(pass));
  std::iota(order_.begin(), order_.end(), 0u);
  // Shuffle of Fisher and Yates, from the last element to the second.
  for (uint64_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[random.Below(i + 1)]);
  }
}

absl::Span<const uint32_t> Batches::Examples(int64_t first) {
  NEREUS_CHECK(first >= 0) << first;
  for (int64_t i = 0; i < options_.batch; ++i) {
    Shuffle((first + i) / options_.examples);
    batch_[i] = order_[(first + i) % options_.examples];
  }
  return batch_;
}

}  // namespace nereus
