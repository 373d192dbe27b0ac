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

// What a worker says about itself on standard output: one JSON object a line,
// told apart by "event", read by `nereusctl local` and by scripts. A number
// that isn't finite becomes null, and bytes that aren't UTF-8 are replaced.

// Everything about one finished training run.
struct WorkerReport {
  int rank = 0;
  int joins = 1;  // How often this process has joined the job.
  int workers = 0;
  TrainResult result;
  std::optional<int64_t> saved_round;   // Client::saved_round
  std::optional<double> test_accuracy;  // Absent without images for it.
  uint32_t parameter_checksum = 0;
  int64_t initial_bytes = 0;  // Exchanged before the first step.
  std::vector<LayerSpec> specs;
  std::vector<LayerReport> layers;  // One for each of `specs`.
  std::vector<PeerTraffic> traffic;
  std::optional<Measurements> measured;
};

// A GPU's timeline in the format of Chrome's traces, for Perfetto and the like:
// a row for the computing, and one for the copies each way.
std::string TraceJson(absl::Span<const GpuSpan> spans,
                      absl::Span<const LayerSpec> specs);

// Of the time that copies took, the share in which the GPU computed besides;
// 0: there are none.
double HiddenShare(absl::Span<const GpuSpan> spans);

// Sent and received, over all peers.
int64_t TotalBytes(const std::vector<PeerTraffic>& traffic);

// {"event":"progress","rank":0,...}; `bytes`: sent and received so far.
std::string ProgressJson(int rank, const TrainProgress& progress,
                         int64_t bytes);

// {"event":"done","rank":0,...}. "parameter_checksum" is in hex, eight digits;
// "measured" is null, or {"step_seconds", "bytes_per_second",
// "latency_seconds", "message_seconds"}, and then each layer has its
// "forward_seconds" and "backward_seconds".
std::string DoneJson(const WorkerReport& report);

// The same for people: one line, and one line each for the run and its layers.
std::string ProgressText(const TrainProgress& progress, int64_t bytes);
std::vector<std::string> DoneText(const WorkerReport& report);

}  // namespace nereus
