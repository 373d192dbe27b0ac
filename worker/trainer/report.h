#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/layer_spec.h"
#include "worker/public/client.h"
#include "worker/public/gpu_client.h"
#include "worker/trainer/trainer.h"

namespace nereus {

// Report of one finished training run. A worker writes it to standard output,
// where `nereusctl local` and scripts read it: one JSON object a line, told
// apart by "event". A number that is not finite becomes null; bytes that are
// not UTF-8 are replaced.
struct WorkerReport {
  int rank = 0;  // Last rank of the worker.
  // Number of times that this process has joined the job.
  int joins = 1;
  int workers = 0;  // Number of workers in the last step.
  TrainResult result;
  std::optional<int64_t> saved_round;   // See ClientReport.
  std::optional<double> test_accuracy;  // Absent: there are no test images.
  uint32_t parameter_checksum = 0;      // See ParameterChecksum.
  // Number of bytes exchanged before the first step.
  int64_t initial_bytes = 0;
  std::vector<LayerSpec> specs;
  std::vector<LayerReport> layers;   // Reports, in the order of `specs`.
  std::vector<PeerTraffic> traffic;  // See ClientReport.
  std::optional<Measurements> measured;
};

// Returns a GPU's timeline in the format of Chrome's traces, which Perfetto
// reads: a row for the computing, and a row for the copies in each direction.
std::string TraceJson(absl::Span<const GpuSpan> spans,
                      absl::Span<const LayerSpec> specs);

// Returns the share of the copies' time in which the GPU also computed; 0
// without copies.
double HiddenShare(absl::Span<const GpuSpan> spans);

// Returns the bytes sent to and received from all peers.
int64_t TotalBytes(const std::vector<PeerTraffic>& traffic);

// Returns {"event":"progress","rank":0,...}. `bytes`: sent and received so far.
std::string ProgressJson(int rank, const TrainProgress& progress,
                         int64_t bytes);

// Returns {"event":"done","rank":0,...}. "parameter_checksum" has eight
// hexadecimal digits. "measured" is null, or {"step_seconds",
// "bytes_per_second", "latency_seconds", "message_seconds"}; then each layer
// has its "forward_seconds" and "backward_seconds".
std::string DoneJson(const WorkerReport& report);

// Returns the progress as a line for people.
std::string ProgressText(const TrainProgress& progress, int64_t bytes);
// Returns the report as lines for people: one for the run, one for each layer.
std::vector<std::string> DoneText(const WorkerReport& report);

}  // namespace nereus
