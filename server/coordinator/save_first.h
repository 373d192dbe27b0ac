#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Queue of the actions of a coordinator until its driver carries them out. An
// action leaves the queue only after the last state that the coordinator asked
// to save before it (SaveState) is on disk. Otherwise members could hear of an
// epoch that is not on disk. A restarted coordinator would not know this epoch,
// and would have to end the job. The log lines of an event wait for all states
// of the event: they must not tell what is not so yet.
//
//   Add --> queue --Next, if the state before it is saved--> carried out
//             |
//             '--BeginSave--> disk, which takes its time --OnSaved--'
//
// While a save goes on, members go on in the epoch that they know. At most one
// save goes on at a time. It saves the newest state, which stands for all
// states before it: a slow disk saves less often, and does not fall behind.
//
// Plain bookkeeping; the owner saves, and carries out the actions. The queue is
// bounded only if the owner gives up when IsHopeless.
class SaveFirst {
 public:
  // Adds the actions of an event behind those that wait.
  void Add(CoordinatorOutbox out);

  // Removes the next action that may be carried out, and returns it. Returns
  // nothing if no action waits, or if the next one waits for a save. Never
  // returns a SaveState.
  std::optional<CoordinatorAction> Next();

  // Begins a save. Returns the state, which the owner saves without holding up
  // anything else, and then calls OnSaved. Returns null if there is nothing to
  // save, if a save goes on already, or if the last one failed less than 200 ms
  // ago.
  std::shared_ptr<const CoordinatorState> BeginSave(absl::Time now);
  // Notes the outcome of the save that has begun. After an error, BeginSave
  // begins another try.
  void OnSaved(absl::Status outcome, absl::Time now);

  // True if no action waits, and the last state is saved.
  bool empty() const { return held_.empty() && saved_ == asked_; }
  // Number of messages to members that wait.
  int64_t messages() const;

  // Time since the first try to save after the last success, whether that try
  // goes on still or has failed. Zero if there was none.
  absl::Duration unsaved_for(absl::Time now) const;
  // Error of the last try, while unsaved_for is not zero; OK: the first try
  // goes on.
  const absl::Status& failure() const { return failure_; }
  // True if the coordinator should end, so that one that can save takes its
  // place: saves have failed for longer than a lease, or none has ended for
  // kHangingLeases leases. A disk that fails says that it will not work soon; a
  // disk that hangs may go on at any moment, and until then training goes on.
  bool IsHopeless(absl::Duration lease, absl::Time now) const {
    return unsaved_for(now) > lease * (failure_.ok() ? kHangingLeases : 1);
  }
  static constexpr int kHangingLeases = 6;

 private:
  // Action that waits until state number `state` is saved.
  struct Held {
    int64_t state;
    CoordinatorAction action;
  };

  std::deque<Held> held_;  // Actions that wait, in order.
  // States are numbered from 1 in the order in which they were asked for.
  int64_t asked_ = 0;                               // Newest state.
  int64_t saved_ = 0;                               // Newest saved state.
  int64_t saving_ = 0;                              // State of the open save.
  std::shared_ptr<const CoordinatorState> newest_;  // State number asked_.
  // Time of the first try to save since the last one that succeeded; absent: no
  // try has begun since then.
  std::optional<absl::Time> unsaved_since_;
  // Time and error of the last try, if it failed.
  absl::Time failed_at_ = absl::InfinitePast();
  absl::Status failure_;
};

}  // namespace nereus
