#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/network/simulated_network.h"
#include "common/protocol/job.h"
#include "tests/simulation/laws/cluster_event.h"

namespace nereus {

// Questions that laws may ask about the cluster while they observe an event.
// The simulated cluster answers them; in unit tests of laws a fake does.
class ClusterView {
 public:
  virtual ~ClusterView() = default;

  // Virtual time.
  virtual absl::Time now() const = 0;
  // Job as the coordinator has it, or as it was when the coordinator died.
  virtual const Job& job() const = 0;
  // True if the results of the worker in this process still count: the process
  // lives, it is a worker of the coordinator's job, and the job has not gone
  // back to a checkpoint since the worker's epoch. A worker that counts as dead
  // and has not heard it yet may have other results than the job.
  virtual bool Counts(ProcessId worker) const = 0;
};

// Place of a breach in the job. The message leaves out fields with their
// defaults.
struct Place {
  static constexpr int64_t kNoRound = INT64_MIN;

  int layer = -1;            // Layer, as an index of the model.
  int64_t round = kNoRound;  // Round or step.
  int rank = -1;             // Rank of a worker.
};

// Statement that is true of every run, whatever the faults are, such as "after
// a round, all workers have the same bits". A law observes the events of a run
// and reports an event that contradicts it. It changes nothing and draws no
// random number, so a run is the same with the law and without it.
//
// A new law is a new file in this folder, and a line in all_laws.cc. Its unit
// test in laws_test.cc tells it an event that breaks it: a law that cannot fail
// finds no defect.
//
//   class NoNegativeRoundLaw final : public Law {
//    public:
//     absl::string_view name() const override { return "no negative round"; }
//     void Observe(const ClusterEvent& event) override {
//       const auto* done = std::get_if<RoundDone>(&event);
//       if (done == nullptr || done->place.round >= kInitialRound) return;
//       Breach(PlaceOf(done->place), "a round before the initial one");
//     }
//   };
class Law {
 public:
  // Receives a breach of a law.
  using Report =
      std::function<void(const Law& law, const Place& place, std::string what)>;

  virtual ~Law() = default;

  // Returns the law in a few words, for messages.
  virtual absl::string_view name() const = 0;

  // Takes note of an event, and reports a breach if the event breaks the law.
  virtual void Observe(const ClusterEvent& event) = 0;

  // Returns the reason why the run must end at `now`, or OK. Unlike a breach,
  // the reason may go away: a test may undo its fault and continue a run that
  // has waited too long.
  virtual absl::Status CheckTime(absl::Time /*now*/) const {
    return absl::OkStatus();
  }

  // Connects the law to its cluster. `view` must outlive the law.
  void Bind(const ClusterView* view, Report report) {
    view_ = view;
    report_ = std::move(report);
  }

 protected:
  const ClusterView& view() const { return *view_; }

  // Reports a breach. `what` names the wrong value and the right one, and the
  // processes that have them.
  void Breach(const Place& place, std::string what) const {
    report_(*this, place, std::move(what));
  }

  // Returns the place of an event's layer, for Breach.
  static Place PlaceOf(const LayerPlace& at) {
    return {at.layer, at.round, at.rank};
  }

 private:
  const ClusterView* view_ = nullptr;  // Set by Bind.
  Report report_;                      // Set by Bind.
};

}  // namespace nereus
