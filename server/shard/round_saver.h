#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/machine.h"
#include "server/shard/checkpoint_collector.h"
#include "server/shard/held_chunk.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Rounds of a shard that are saved: collects the values of all chunks as of
// such a round, and hands them to a checkpoint or to the next plan.
//
// Layers that workers own come as kOwned frames from the first worker, or,
// after the last round of all, from the worker that the coordinator names.
class RoundSaver {
 public:
  // `epoch` is borrowed and must outlive this. `chunks`: the shard's chunks.
  // Those of the block layer, which come last, are not saved.
  RoundSaver(const ShardEpoch* epoch, const std::vector<Chunk>& chunks);

  // Starts an epoch. `was_serving`: this server was the primary before.
  void OnEpoch(bool was_serving);
  // Starts the save of the last round of all, in which worker `sender` sends
  // what workers own. Returns false if the round is saved already.
  bool BeginLast(int64_t round, int32_t sender);

  // Checks a kOwned frame of chunk `index` from the worker at `position`.
  absl::StatusOr<Landing> OnOwnedHeader(int index, const HeldChunk& held,
                                        const FrameHeader& header,
                                        int position) const;
  // Adds the frame to the values that are collected.
  void OnOwnedFrame(int index, const Frame& frame, Outbox& out);

  // Takes the values of chunk `index` as of `round`, if that round is saved.
  void Collect(int index, int64_t round, const HeldChunk& held, Outbox& out);
  // Takes values that were collected for the next plan into the last save.
  void CollectHandedOver(int index, int64_t round, Outbox& out);

  // Values that workers own, as of Job::switch_round, by chunk; none yet. The
  // entries of other chunks are empty.
  std::optional<CheckpointCollector::Collected>& handed_over() {
    return handed_over_;
  }
  // True if the values that workers own have arrived for the next plan.
  bool has_handed_over() const { return handed_over_.has_value(); }

  // Bytes of the values that are collected or handed over.
  int64_t held_bytes() const;

 private:
  // Saves a round of which all values are here, or keeps them for the next
  // plan.
  void OnCollected(std::optional<CheckpointCollector::Collected> collected,
                   Outbox& out);

  const ShardEpoch& epoch_;
  CheckpointCollector collector_;  // Rounds that are not complete yet.
  std::optional<CheckpointCollector::Collected> handed_over_;
  // Rank of the worker that sends what workers own as of the last round of all;
  // -1 until the coordinator has named it.
  int32_t last_sender_ = -1;
  int64_t saved_round_ = kInitialRound;  // Round of the last checkpoint made.
};

}  // namespace nereus
