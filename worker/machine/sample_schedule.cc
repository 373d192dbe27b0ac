#include "worker/machine/sample_schedule.h"

#include <algorithm>
#include <bit>

namespace nereus {
namespace {

// Number of rounds that may be chosen between two heartbeats before the stride
// doubles. A heartbeat that comes late can leave time for three.
constexpr int kChosenMax = 3;

}  // namespace

// Halves the stride only, so that a pause of a second does not make the worker
// sample every round after it.
void SampleSchedule::OnHeartbeat(int64_t begun_step) {
  const int64_t steps = std::max<int64_t>(begun_step - beat_step_, 1);
  const auto wanted =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(steps)));
  stride_ = std::max(wanted, stride_ / 2);
  beat_step_ = begun_step;
  chosen_since_beat_ = 0;
}

bool SampleSchedule::Chooses(int layer, int64_t round) {
  if (!SampledLayersOf(round, layers_).Has(layer)) return false;
  // All layers of a round are sampled, although the stride may have changed.
  if (round == newest_round_) return true;
  if (stride_ == 0 || round % stride_ != 0) return false;
  if (round > newest_round_) {
    newest_round_ = round;
    if (++chosen_since_beat_ > kChosenMax) stride_ *= 2;
  }
  return true;
}

}  // namespace nereus
