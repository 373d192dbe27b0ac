#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/machine.h"
#include "worker/machine/result_assembly.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Moves the state of one layer between rounds: parameters and, where workers
// run the optimizer, the optimizer's state.
//
//   - Fetches the first values, from the shards or from the donor.
//   - As the donor, gives the layer to workers that join.
//   - Sends a worker-owned layer to the shards, for a checkpoint or for the
//     plan that comes next.
//   - Asks the driver for the checksum by which the coordinator compares
//     replicas.
//
// The difficulty is to send at the right moment. The caller's memory has the
// values of a round only from the update of that round until the next update.
// If the caller runs the optimizer, the machine does not see an update. It
// knows that the update has happened when the caller pushes again or leaves. If
// it sent the values earlier, they could be those of the round before.
class LayerTransfer {
 public:
  // `layer`, `ledger`, `results`: not owned; must outlive this.
  LayerTransfer(const WorkerLayer& layer, const RoundLedger& ledger,
                ResultAssembly& results);

  // Asks the shards or the donor for the first values that this worker lacks.
  // In a new job the first worker sends its own values to the shards before
  // that.
  void Fetch(Outbox& out);

  // Take a joining worker's request for the layer as of a round. OnPull sends
  // the layer once that round is done and its update has happened.
  absl::StatusOr<Landing> OnPullHeader(const FrameHeader& header) const;
  void OnPull(const FrameHeader& header, Outbox& out);
  // Sends the layer to joining workers that asked for a round that is now done.
  void ServeJoiners(Outbox& out);

  // Called when the memory has the layer's values as of `round`, and will not
  // change until the driver has carried out the outbox. Asks for the checksum
  // if `round` is that of a checkpoint or `is_last` is true. Sends the layer to
  // the shards if this worker has to save it.
  void OnValuesOf(int64_t round, bool is_last, Outbox& out) const;
  // Asks for the checksum of a sample of the layer as of `round`, the last done
  // round. Called when the contribution to the next round is sent, whichever
  // process runs the optimizer: all updates have happened by then, and the
  // caller writes to the memory no more until that next round is done. So a
  // sample also finds values that a program has changed between two steps.
  // REQUIRES: has_replica().
  void Sample(int64_t round, Outbox& out) const;
  // True if the memory has the values of the last done round that all workers
  // must have, because this worker has taken part in the round.
  bool has_replica() const;

  // Sends the layer to the shards, unless they have it. `round`: the last round
  // of the job, after which all workers have left.
  void SaveLast(int64_t round, Outbox& out) const;

  // Notes that the caller has done its last step: the values change no more.
  void Leave(Outbox& out);
  bool has_left() const { return has_left_; }
  void set_has_left(bool has_left) { has_left_ = has_left; }

  // Enters the job's next epoch. Forgets the requests of joining workers, which
  // ask again. If the memory has the values of the last done round, calls
  // OnValuesOf again for it, because frames with these values may have been
  // lost with the last epoch.
  void OnEpoch(Outbox& out);

 private:
  // A request of a worker that joins.
  struct Joiner {
    int rank = 0;       // The worker's rank.
    int64_t round = 0;  // Round as of which the worker needs the layer.
  };

  // Sends the layer's `arrays` as of `round` to a worker, or, if `to` is
  // nullopt, to the shards that own the chunks.
  void SendArrays(const std::vector<Buffer>& arrays, FrameKind kind,
                  int64_t round, std::optional<PeerId> to, Outbox& out) const;
  // True if this worker has taken part in the last done round. False if it has
  // fetched the values of that round: then other workers report them.
  bool made_values() const {
    return ledger_.contributors() > 0 && layer_.position() >= 0;
  }
  // Asks the driver for the checksum of the layer as of `round`, if
  // has_replica().
  void ReportChecksum(int64_t round, Outbox& out) const;
  // Sends the layer as of `round` to the shards, if workers own it.
  void SendToCheckpoint(int64_t round, Outbox& out) const;
  // Parameters and arrays of optimizer state, each as long as the layer.
  std::vector<Buffer> Arrays() const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  ResultAssembly& results_;    // Assembles the first values; not owned.
  bool has_left_ = false;      // True if the caller has done its last step.

  // Requests of this epoch.
  std::vector<bool> asked_;      // True at positions of workers that asked.
  std::vector<Joiner> joiners_;  // Requests that wait for their round.
};

}  // namespace nereus
