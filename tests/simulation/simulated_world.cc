#include "tests/simulation/simulated_world.h"

#include <utility>

#include "tests/simulation/laws/all_laws.h"

namespace nereus {

SimulatedWorld::SimulatedWorld(const SimulatedClusterOptions& job,
                               Workload what, const ClusterView* view,
                               Execute carry_out)
    : options(job),
      workload(std::move(what)),
      events(options.clock != nullptr ? *options.clock : own_events),
      random(job.seed),
      laws(job.seed, workload.layers, view),
      hosts(options),
      execute(std::move(carry_out)) {
  AddAllLaws(options, workload, &laws);
}

// Two runs with equal digests almost certainly had equal events at equal times.
void SimulatedWorld::Note(uint64_t what, uint64_t about) {
  constexpr uint64_t kPrime = 0x100000001b3;  // FNV-1a, a word at a time.
  digest = ((digest ^ what) * kPrime ^ about) * kPrime;
}

bool SimulatedWorld::RunNext() {
  if (!events.RunNext()) return false;
  Note(static_cast<uint64_t>(absl::ToUnixNanos(events.now())), 0);
  return true;
}

}  // namespace nereus
