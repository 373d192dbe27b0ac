#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/lineup.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Parts of the product of a layer's factors, one for each worker of a host.
// Each worker computes its part and hands it to its mates, so that a host
// computes the product once. A part is a run of whole rows of the gradient's
// matrix; the last part has the bias too. Hosts may cut the product in
// different ways, because the cut changes no bit (FactorGradientRows).
//
//   gradient:  | rows of local worker 0 | rows of local worker 1 | bias |
//              '------- part 0 ---------'-------- part 1 ----------------'
//
// Immutable value.
class ProductParts {
 public:
  // Part of one worker.
  struct Part {
    int64_t begin = 0;     // First row of the matrix.
    int64_t end = 0;       // Row after the last one.
    int64_t offset = 0;    // Index of the part's first value in the gradient.
    int64_t elements = 0;  // Number of values of the part.
  };

  // Makes the parts of a product that workers do not share: there are none.
  ProductParts() = default;
  // Makes the parts for a round with this line-up. There are no parts if this
  // worker makes the whole product by itself: because it is alone on its host,
  // it multiplies on a device, or the product is too small to share
  // (SharesProduct in common/plan/cost_model.h).
  ProductParts(const WorkerLayer& layer, const Lineup& lineup);

  // True if the workers of this host share the product.
  bool are_shared() const { return count_ > 0; }
  // Number of parts: one for each worker of this host; 0 if there are none.
  int count() const { return count_; }

  // Returns the part of the host's worker with this local index. REQUIRES: 0 <=
  // local < count().
  Part at(int local) const;
  // Returns the number of frames of the parts 0 to `local` - 1. So
  // FramesBefore(count()) is the number of frames of all parts.
  int64_t FramesBefore(int local) const;

 private:
  int count_ = 0;     // Number of parts.
  int64_t m_ = 0;     // Rows of the gradient's matrix.
  int64_t n_ = 0;     // Columns of the gradient's matrix.
  int64_t bias_ = 0;  // Number of values of the bias.
};

}  // namespace nereus
