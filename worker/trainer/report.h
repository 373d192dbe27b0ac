#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/messages/worker_event.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"
#include "worker/public/client_report.h"
#include "worker/trainer/trainer.h"

namespace nereus {

// Returns a GPU's timeline in the format of Chrome's traces, which Perfetto
// reads: a row for the computing, and a row for the copies in each direction.
std::string TraceJson(absl::Span<const GpuSpan> spans,
                      absl::Span<const LayerSpec> specs);

// Returns the sum of the bytes sent to and received from all peers.
int64_t TotalBytes(const std::vector<PeerTraffic>& traffic);

// Returns the event about a worker's progress. `bytes`: sent and received so
// far.
WorkerProgress MakeProgress(int rank, const TrainProgress& progress,
                            int64_t bytes);

// Returns the report of a worker that has left the job. The caller adds the
// fields that do not follow from the arguments: rank, joins, accuracy,
// checksum, initial bytes. REQUIRES: `specs` and `costs` have the same layers.
WorkerResult MakeResult(const TrainResult& result, const ClientReport& costs,
                        absl::Span<const LayerSpec> specs);

// Returns the progress as a line for people.
std::string ProgressText(const WorkerProgress& progress);
// Returns the report as lines for people: one for the run, one for each layer.
std::vector<std::string> DoneText(const WorkerResult& result);

}  // namespace nereus
