#include "worker/trainer/batches.h"

#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/random.h"

namespace nereus {

absl::StatusOr<Batches> Batches::Create(const Options& options) {
  constexpr int64_t kExamplesMax = std::numeric_limits<uint32_t>::max();
  if (options.examples < 1 || options.examples > kExamplesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("examples is ", options.examples, ", must be in [1, ",
                     kExamplesMax, "]"));
  }
  if (options.batch < 1 || options.workers < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch is ", options.batch, " and workers ",
                     options.workers, ", both must be at least 1"));
  }
  if (options.rank < 0 || options.rank >= options.workers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank is ", options.rank, ", must be in [0, ", options.workers, ")"));
  }
  // Divided, since the product might overflow.
  if (options.batch > options.examples / options.workers) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.examples, " images to train with are less than one step of ",
        options.workers, " workers with ", options.batch, " images each"));
  }
  return Batches(options);
}

Batches::Batches(const Options& options)
    : options_(options), order_(options.examples) {
  std::iota(order_.begin(), order_.end(), 0u);
}

void Batches::StartEpoch(int64_t epoch) {
  // The first value drawn of one generator seeds another: seeds and epochs next
  // to each other then share nothing.
  Random seeds(options_.seed);
  Random random(seeds.Next() + static_cast<uint64_t>(epoch));
  std::iota(order_.begin(), order_.end(), 0u);
  // Fisher and Yates, from the last to the second.
  for (uint64_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i], order_[random.Below(i + 1)]);
  }
}

absl::Span<const uint32_t> Batches::Examples(int64_t step) const {
  NEREUS_CHECK(step >= 0 && step < steps_per_epoch())
      << "step " << step << " of " << steps_per_epoch();
  const int64_t first =
      (step * options_.workers + options_.rank) * options_.batch;
  return absl::MakeConstSpan(order_).subspan(first, options_.batch);
}

}  // namespace nereus
