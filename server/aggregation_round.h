#ifndef NEREUS_SERVER_AGGREGATION_ROUND_H_
#define NEREUS_SERVER_AGGREGATION_ROUND_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/protocol/outbox.h"
#include "common/tensor/buffer.h"

namespace nereus {

// In which order a round adds what its contributors send.
enum class SumOrder {
  kArrival,  // Two runs may differ in the last bits.
  kRank,     // Always the same bits; holds what comes before its turn.
};

// One chunk's contributions to one round: collecting --last frame--> complete.
//
// Each contributor's chunk comes in frames; a frame is counted once, however
// often it is added, which makes contributing safe to retry. Plain bookkeeping:
// the sums are actions for the driver.
//
// Memory: the sum; with SumOrder::kRank, in addition, the frames that are held.
class AggregationRound {
 public:
  // `contributors` >= 1: ranks [0, contributors). `elements`: float32 values,
  // >= 1.
  AggregationRound(int contributors, int64_t elements, SumOrder order);

  // Whether `frame` of this contributor is in already.
  bool Has(int contributor, int64_t frame) const;

  // Adds `frame` of this contributor; `payload` need only live until the
  // actions have been carried out. REQUIRES: !Has(contributor, frame), both in
  // range.
  void Add(int contributor, int64_t frame, const Buffer& payload, Outbox& out);

  bool complete() const { return missing_ == 0; }

  // Contributors not heard from in full, ascending: for messages.
  std::vector<int> MissingContributors() const;

  // The sum of all contributions once complete; the first one, until then
  // partial.
  const Buffer& sum() const { return sum_; }

  // The sum, and the frames that are held.
  int64_t held_bytes() const;

  // The sum, for as long as the caller likes; the next round is summed up in
  // `memory`, of the same size or empty.
  Buffer ExchangeSum(Buffer memory);

  // Starts over, for the next round or for the same one with others, in the
  // same memory, unless somebody still reads the old sum when the first frame
  // comes: then that reader keeps it. `contributors` as in the constructor.
  void Reopen(int contributors);

 private:
  void Fold(int64_t frame, const Buffer& payload, Outbox& out);

  int contributors_ = 0;
  int64_t elements_;
  SumOrder order_;
  Buffer sum_;
  bool started_ = false;       // A frame of the open round is in.
  std::vector<bool> arrived_;  // By frame * contributors_ + contributor.
  std::vector<int> folded_;  // By frame: how many contributions the sum holds.
  std::map<std::pair<int64_t, int>, Buffer> held_;  // By frame and contributor.
  int64_t missing_ = 0;  // Count of false in arrived_.
};

}  // namespace nereus

#endif  // NEREUS_SERVER_AGGREGATION_ROUND_H_
