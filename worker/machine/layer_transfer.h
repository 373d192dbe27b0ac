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
//   - Asks for the checksum by which replicas are compared.
//
// The difficulty is the moment. A round's values are in the caller's memory
// only from its update until the next update. Where the caller runs the
// optimizer the machine knows that the update has happened when the caller
// pushes again or leaves. Values that are sent too early would be those of the
// round before.
class LayerTransfer {
 public:
  // All parameters: not owned; must outlive this.
  LayerTransfer(const WorkerLayer& layer, const RoundLedger& ledger,
                ResultAssembly& results);

  // Asks for the first values that are missing. The first worker of a new job
  // sends its own to the shards before.
  void Fetch(Outbox& out);

  // Takes the request of a worker that joins, and serves it when the layer is
  // as of the round that the worker asks for.
  absl::StatusOr<Landing> OnPullHeader(const FrameHeader& header) const;
  void OnPull(const FrameHeader& header, Outbox& out);
  // Serves the requests for rounds that are done.
  void ServeJoiners(Outbox& out);

  // Called when the layer's values are those of `round`, and stay so until the
  // outbox is carried out. Asks for the checksum if `round` is a checkpoint's
  // or `is_last`, and sends the layer to the shards if this worker saves it.
  void OnValuesOf(int64_t round, bool is_last, Outbox& out) const;
  // Sends the layer to the shards, unless they have it. `round`: the last round
  // of the job, after which all workers have left.
  void SaveLast(int64_t round, Outbox& out) const;

  // The caller has done its last step: the values stay as they are.
  void Leave(Outbox& out);
  bool has_left() const { return has_left_; }
  void set_has_left(bool has_left) { has_left_ = has_left; }

  // Enters the job's next epoch: joining workers ask again. Reports the values
  // of the last done round again (OnValuesOf), because frames of them may have
  // been lost with the last epoch.
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
  // True if this worker has made the values of the last done round, with
  // others. If it has fetched them, other workers made and report them.
  bool made_values() const {
    return ledger_.contributors() > 0 && layer_.position() >= 0;
  }
  // Asks for the checksum of the layer as of `round`, if all workers must have
  // the same values.
  void ReportChecksum(int64_t round, Outbox& out) const;
  // Sends the layer as of `round` to the shards, if workers own it.
  void SendToCheckpoint(int64_t round, Outbox& out) const;
  // Parameters and arrays of optimizer state, each as long as the layer.
  std::vector<Buffer> Arrays() const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  ResultAssembly& results_;    // Assembles the first values; not owned.
  bool has_left_ = false;      // The caller has done its last step.

  // Requests of this epoch.
  std::vector<bool> asked_;      // True at positions of workers that asked.
  std::vector<Joiner> joiners_;  // Requests that wait for their round.
};

}  // namespace nereus
