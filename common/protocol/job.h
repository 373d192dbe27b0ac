#ifndef NEREUS_COMMON_PROTOCOL_JOB_H_
#define NEREUS_COMMON_PROTOCOL_JOB_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"
#include "common/plan/scheme.h"
#include "common/protocol/frame.h"

namespace nereus {

// Where the optimizer runs.
enum class OptimizerPlace {
  kServer,  // "server": parameters and optimizer state live on the shards.
  kWorker,  // "worker": the shards only average; the caller's optimizer runs.
};

absl::string_view OptimizerPlaceName(OptimizerPlace place);
absl::StatusOr<OptimizerPlace> ParseOptimizerPlace(absl::string_view name);

// What the job's owner chooses, once for all members: shard 0's flags.
struct JobOptions {
  OptimizerOptions optimizer;
  OptimizerPlace optimizer_place = OptimizerPlace::kServer;

  // Add contributions in the order of their ranks, whatever the order in which
  // they arrive. Costs a shard the payloads that come early: up to one chunk
  // per worker and open round.
  bool deterministic = false;

  bool operator==(const JobOptions&) const = default;
};

// Everything that one epoch of a job fixes: equal on all its members, who
// derive all they do from it. Constant once made.
struct Job {
  uint64_t id = 0;  // Drawn by the coordinator; frames carry it.
  uint64_t epoch = 0;
  int workers = 0;
  std::vector<LayerSpec> layers;  // In forward order.
  std::vector<Route> routes;      // By layer.
  Placement placement;
  JobOptions options;

  int shards() const { return placement.shards(); }

  // 1 / workers: what turns a sum of the workers' gradients into their mean.
  float mean_scale() const { return 1.0f / static_cast<float>(workers); }
};

// Shared between the machine that follows it and the driver that prints it.
using JobPtr = std::shared_ptr<const Job>;

// Checks and assembles a job from parts that came over the network.
// Errors: kInvalidArgument, naming the field and its value.
absl::StatusOr<JobPtr> MakeJob(uint64_t id, uint64_t epoch, int workers,
                               int shards, std::vector<LayerSpec> layers,
                               std::vector<Route> routes, JobOptions options);

// A header of this job: everything but kind, layer, chunk, round and the
// payload's place is fixed.
FrameHeader MakeHeader(const Job& job, PeerId sender, FrameKind kind, int layer,
                       int64_t chunk, int64_t round);

// Adds to `send`, one by one, the frames that carry `values`: `header` with
// offset and length filled in, and a slice of `values`.
template <typename Send>
void CutIntoFrames(FrameHeader header, const Buffer& values, Send send) {
  header.wire = WireType::kFloat32;
  const int64_t elements = values.float_count();
  for (int64_t index = 0; index < FrameCount(elements); ++index) {
    const int64_t offset = index * kFrameElementsMax;
    const int64_t bytes =
        FrameElements(elements, index) * static_cast<int64_t>(sizeof(float));
    header.offset = static_cast<uint32_t>(offset);
    header.payload_bytes = static_cast<uint32_t>(bytes);
    send(Frame{header, values.Slice(offset * 4, bytes)});
  }
}

// What every frame of a job must satisfy on any member: job, epoch, sender,
// layer. Errors: kInvalidArgument, with both values.
absl::Status CheckFrame(const Job& job, PeerId from, const FrameHeader& header);

// The chunk that a frame means. Errors: kInvalidArgument.
absl::StatusOr<Chunk> FindChunk(const Job& job, const FrameHeader& header);

}  // namespace nereus

#endif  // NEREUS_COMMON_PROTOCOL_JOB_H_
