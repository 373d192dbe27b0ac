#ifndef NEREUS_WORKER_WORKER_MACHINE_H_
#define NEREUS_WORKER_WORKER_MACHINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "worker/syncer.h"

namespace nereus {

// A worker's side of the protocol: one syncer per layer. Pure; client.cc drives
// it, and so does the simulated cluster.
class WorkerMachine final : public Machine {
 public:
  // `rank`: among job->workers. `parameters`: by layer, float32 of the whole
  // layer.
  WorkerMachine(JobPtr job, int rank, std::vector<Buffer> parameters);

  // Fetches the initial parameters: a LayerDone with kInitialRound per layer
  // follows.
  void Start(Outbox& out);

  // The caller's contribution to round `round` of `layer`, see Syncer.
  // REQUIRES: `layer` and the buffers' sizes are the model's.
  absl::Status OnPush(int layer, int64_t round, Buffer gradient, Outbox& out);
  absl::Status OnPushFactors(int layer, int64_t round, FactorBuffers factors,
                             Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;

  const Syncer& syncer(int layer) const { return *syncers_[layer]; }

 private:
  const JobPtr job_;
  std::vector<std::unique_ptr<Syncer>> syncers_;  // By layer.
};

}  // namespace nereus

#endif  // NEREUS_WORKER_WORKER_MACHINE_H_
