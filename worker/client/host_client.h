#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/log_repeats.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/driver/compute.h"
#include "common/metrics/metric_list.h"
#include "common/protocol/job_options.h"
#include "common/protocol/outbox.h"
#include "common/tensor/arrival.h"
#include "common/tensor/device_layer.h"
#include "common/trace/span_source.h"
#include "worker/public/client.h"
#include "worker/public/client_options.h"

namespace nereus {

// Logs the options of the job that a worker has joined. Warns if the caller
// runs the optimizer, an optimizer with these options has state, and the caller
// has bound no state (LayerBinding::state), unless `client` says that the
// optimizer keeps none. A worker that joins later would then begin with other
// state. `lacks_state`: true if the caller has bound no state.
void LogJoined(const ClientOptions& client, const JobOptions& job,
               bool lacks_state);

// Log lines about steps that all workers skip, because a gradient of this
// worker is not finite. A gradient can be so in every step, so the lines of a
// layer become rare (LogRepeats). Thread-safe.
class SkipNotes {
 public:
  // Logs that the step is skipped because of `layer`, if a line is due.
  // `reason`: the place and the value.
  void Log(int64_t step, const std::string& layer, const std::string& reason)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  LogRepeats repeats_ ABSL_GUARDED_BY(mu_);  // Lines of each layer.
};

// Layer in host memory. This memory can be the copy of a layer on a GPU.
struct HostLayerBinding {
  LayerBinding layer;

  // Device that has the originals of the parameters and of the state. Because
  // the originals may be newer, the client waits for the device to bring the
  // copies up to date before it reads them. Null: the layer is in host memory
  // alone.
  std::shared_ptr<DeviceLayer> device = nullptr;
};

struct HostClientOptions {
  ClientOptions client;  // Options of the public client.

  // Called when a round of a layer is done, before the Wait for this round
  // returns. With `fetched`, no round is done: the client has fetched the
  // layer's parameters, for a Connect or BeginStep that has not returned yet.
  // The client calls this function on any thread. The function must neither
  // wait nor call the client. May be empty.
  std::function<void(const LayerDone& done, bool fetched)> done = nullptr;

  // Called when a part of a round's result is complete in host memory, before
  // `done` is called for the round. Only for a layer by the servers that has a
  // `device`, and not in a sparse job. The parts need not cover the layer. The
  // rules of `done` hold for this function, too. May be empty.
  std::function<void(const PartDone& part)> part_done = nullptr;

  // The device that computes for the worker's driver, such as a GPU. Owned by
  // the client and by its caller together, because the caller also uses it.
  std::shared_ptr<Compute> compute = std::make_shared<Compute>();

  // Returns true if the caller has queued the pushes of all layers of a step on
  // a device, so that the step ends there by computing alone. A caller that
  // then waits keeps its turn at a shared device until the last push comes. May
  // be empty: pushes come when they are made.
  std::function<bool(int64_t step)> has_queued_all = nullptr;

  // Other source of spans while the job is traced. Not owned; must outlive the
  // client. Null: there is none.
  SpanSource* traced = nullptr;

  // Adds metrics to each page /metrics of the client. Called on threads of the
  // page, until the client is destroyed. May be empty.
  std::function<void(MetricList&)> add_metrics = nullptr;
};

// Client for layers in host memory, with extra calls and options for the client
// of a GPU, which is built on it. Callers use Client, which is this class
// without the extras. It ignores streams. Thread-safe.
class HostClient : public Client {
 public:
  // Join the job like Client::Join and Client::Connect, with the same errors.
  static absl::StatusOr<std::unique_ptr<HostClient>> Join(
      HostClientOptions options, std::vector<HostLayerBinding> layers);
  static absl::StatusOr<std::unique_ptr<HostClient>> Connect(
      HostClientOptions options, std::vector<HostLayerBinding> layers);

  // Pushes a gradient that a device is still copying to `gradient`, from its
  // first value on. When the client sends the layer, it sends each frame as
  // soon as the values of the frame have arrived. With `--nan=skip`, and in a
  // sparse job unless `--nan=ignore`, the gradient is searched for NaNs and
  // infinities. This call then waits until `arrival` has searched the values
  // (Arrival::FindTooLarge) or, if it cannot, until all values have arrived.
  // If the arrival fails, the job ends for all workers, with the error of the
  // arrival.
  //
  // `mean`: memory for the mean gradient of a layer whose factors the plan
  // sends (factor_rows). If it is empty, the mean replaces the gradient,
  // unless the job runs the optimizer.
  virtual absl::Status PushArriving(int layer, int64_t step,
                                    absl::Span<float> gradient,
                                    const std::shared_ptr<Arrival>& arrival,
                                    absl::Span<float> mean = {}) = 0;

  // Pushes factors that have arrived, in memory that `arrival` keeps alive. The
  // client keeps a reference to `arrival` as long as it reads the factors. If
  // `arrival` is null, the caller keeps the memory alive, as in PushFactors.
  virtual absl::Status PushArrivingFactors(
      int layer, int64_t step, const Factors& factors,
      absl::Span<float> gradient, const std::shared_ptr<Arrival>& arrival) = 0;

  // Announces that a Wait for a layer will follow. If the layer is deferred,
  // the client sends all deferred layers, as soon as it may. It asks for the
  // layer's result before those of other layers.
  virtual absl::Status Hurry(int layer) = 0;

  // Gives the turn at a shared device back, because the device waits for other
  // workers.
  virtual void EndTurn() = 0;

  // Returns the error of the job if the job has failed. Returns kOutOfRange if
  // this worker must discard its values (see Client) and the caller has not
  // called BeginStep since. Otherwise returns OK.
  virtual absl::Status Interruption() const = 0;

  // Returns the number of rows that factors of the layer must have, whether the
  // plan sends them or this client multiplies them: the rows of the job, or
  // those of the binding if the job has lost the factors. Other values:
  // kRowsNotKnown, kFactorsLost. The number changes only with the plan: between
  // two steps, or when the job goes back to a checkpoint.
  virtual int64_t RowsForFactors(int layer) const = 0;

  // True if the plan sends the layer's gradients as bfloat16, and the client
  // does not need them as float32. The caller may then push the gradient as
  // bfloat16 (Arrival::bfloat16). The answer can change with the plan, and with
  // the workers of this host.
  virtual bool takes_bfloat16(int layer) const = 0;
};

}  // namespace nereus
