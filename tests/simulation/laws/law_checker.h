#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Judge of a simulated run: tells every law each event, and keeps the first
// reason why the run cannot go on.
//
// The simulated cluster tells it an event at once, before any other state
// changes. A law that compared replicas only at the end of a run could not name
// the round since which they differ.
class LawChecker {
 public:
  // Messages name `seed` and the layers. `view` must outlive this.
  LawChecker(uint64_t seed, std::vector<LayerSpec> layers,
             const ClusterView* view);

  // Adds a law, which hears of all events from now on. Returns it.
  template <typename AnyLaw>
  AnyLaw& Add(std::unique_ptr<AnyLaw> law) {
    AnyLaw& added = *law;
    Bind(added);
    laws_.push_back(std::move(law));
    return added;
  }

  // Returns the law of this class. Null: there is none.
  template <typename AnyLaw>
  AnyLaw* Find() const {
    for (const auto& law : laws_) {
      if (auto* found = dynamic_cast<AnyLaw*>(law.get())) return found;
    }
    return nullptr;
  }

  // Tells all laws of an event.
  void Tell(const ClusterEvent& event);

  // Ends the run for a reason that breaks no law: the job itself failed.
  void EndRun(const absl::Status& reason) { status_.Update(reason); }

  // Returns the first reason why the run cannot go on, or OK. A breach is
  // kInternal. Its message names the seed, the virtual time, the layer, the
  // round, the worker and both values.
  const absl::Status& status() const { return status_; }

  // Returns the laws' view of the cluster.
  const ClusterView& view() const { return *view_; }

  // Returns the first reason of a law why the run must end now, or OK.
  absl::Status CheckTime() const;

 private:
  void Bind(Law& law);
  void OnBreach(const Law& law, const Place& place, const std::string& what);

  const uint64_t seed_;
  const std::vector<LayerSpec> layers_;  // Layers of the model, for names.
  const ClusterView* const view_;        // Not owned.
  std::vector<std::unique_ptr<Law>> laws_;
  absl::Status status_;  // First reason why the run cannot go on.
};

}  // namespace nereus
