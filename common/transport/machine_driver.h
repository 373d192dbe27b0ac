#ifndef NEREUS_COMMON_TRANSPORT_MACHINE_DRIVER_H_
#define NEREUS_COMMON_TRANSPORT_MACHINE_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/transport/transport.h"

namespace nereus {

// The one thread that owns a machine: hands it what the transport brings, and
// carries out its actions, arithmetic on this thread and frames through the
// transport.
class MachineDriver final : private FrameHandler {
 public:
  // Called on the driver's thread; none may wait.
  struct Events {
    std::function<void(const LayerDone&)> layer_done;
    std::function<void(PeerId)> connected;
    std::function<void(PeerId, const absl::Status&)> disconnected;
  };

  // `transport` and `machine` are not owned and must outlive this; nobody else
  // calls the machine, or the transport's Poll. Starts at once.
  MachineDriver(PeerId self, JobPtr job, Transport* transport, Machine* machine,
                Events events);

  // Stops and joins the thread. What is queued in the transport stays there.
  ~MachineDriver() override;

  // Runs `event` on the driver's thread, in the order of posting, and carries
  // out the actions that it leaves. Not run if the driver is stopped before.
  using Event = std::function<void(Outbox& out)>;
  void Post(Event event) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes of a layer's frames so far, headers included.
  int64_t bytes_sent(int layer) const { return bytes_sent_[layer]; }
  int64_t bytes_received(int layer) const { return bytes_received_[layer]; }

 private:
  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) override;
  void OnFrame(PeerId from, const Frame& frame) override;
  void OnConnected(PeerId peer) override;
  void OnDisconnected(PeerId peer, const absl::Status& reason) override;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void RunPosted() ABSL_LOCKS_EXCLUDED(mu_);
  void Execute();
  void Send(PeerId to, const Frame& frame);
  void Broadcast(const Frame& frame);

  // Constant after construction.
  const PeerId self_;
  const JobPtr job_;
  Transport* const transport_;
  Machine* const machine_;
  const Events events_;

  // The thread's own.
  Outbox outbox_;
  std::vector<Event> running_;

  // By layer; written by the thread only.
  std::vector<std::atomic<int64_t>> bytes_sent_;
  std::vector<std::atomic<int64_t>> bytes_received_;

  Mutex mu_;
  std::vector<Event> posted_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // Last: uses all of the above.
};

}  // namespace nereus

#endif  // NEREUS_COMMON_TRANSPORT_MACHINE_DRIVER_H_
