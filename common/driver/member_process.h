#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/driver/machine_driver.h"
#include "common/protocol/member.h"
#include "common/protocol/membership.h"
#include "common/protocol/stall_watch.h"
#include "common/rpc/control_server.h"
#include "common/rpc/session_client.h"
#include "common/transport/transport.h"
#include "common/transport/transport_options.h"

namespace nereus {

// Everything that a worker or a server runs for its membership in a job: the
// transport to its peers, the member with its machine, the driver thread, and
// the session with the coordinator.
//
//   session <--messages--> driver thread     <--frames--> transport
//                          (member, machine)
//
// Owned by the client or the server. The parts call each other from their
// threads, so only this class's order of destruction is safe: a session that
// outlived the driver would post to freed memory. A server that was counted as
// dead destroys its MemberProcess and makes another one.
//
// After Join, these are thread-safe: Post, DriveUntil, Send, StopSession, port,
// data_address, driver and transport.
class MemberProcess {
 public:
  struct Options {
    TransportOptions transport;       // Address to listen at for peers.
    std::string node;                 // Value of --node, or "".
    std::string coordinator_address;  // "host:port".
    // Longest time to look for the coordinator and for peers.
    absl::Duration connect_timeout = absl::Seconds(60);
    int layers = 0;  // Number of layers that the driver's traffic() counts.
    // Time for which a round must have waited to be reported as a stall.
    absl::Duration stall_threshold = absl::Seconds(5);
  };

  // Hooks of the owner. make_machine, take_stock and the driver's events run on
  // the driving thread. `heard` and `heartbeat` run on threads of the session.
  // None may wait, except driver.load.
  struct Events {
    // Makes the machine for the first epoch, and again for each epoch that
    // begins from the base round.
    Member::MakeMachine make_machine;
    // The driver's events. MemberProcess sets send_message itself. When the
    // session has failed, it also calls `ended`, on a thread of the session.
    MachineDriver::Events driver;
    // Receives each message of the coordinator before the member does.
    // Optional.
    std::function<void(const CoordinatorMessage&)> heard = nullptr;
    // Returns the state of the machine, which the next heartbeat reports. Its
    // `stall` is the round that has waited longest. Runs once per heartbeat
    // interval, unless the driving thread has not come to the last call yet.
    std::function<Heartbeat()> take_stock;
    // Updates values in a heartbeat that is about to be sent. Optional.
    std::function<void(Heartbeat&)> heartbeat = nullptr;
  };

  // Listens for peers. While a session is open, the answer to liveness checks
  // at `control` says whether the driver works; otherwise it does not change.
  // `control` is not owned and must outlive this. Errors: those of
  // SocketTransport::Start.
  static absl::StatusOr<std::unique_ptr<MemberProcess>> Listen(
      Options options, ControlServer* control);

  // Stops the driver thread, then ends the session, then closes all
  // connections.
  ~MemberProcess();

  // Port at which peers connect.
  int port() const { return transport_->port(); }
  // Address at which peers connect, "host:port".
  std::string data_address() const;

  // Asks the coordinator, in the background, to admit this process. Fills in
  // the request's version, build, incarnation, data address and host. Called
  // once.
  void Join(JoinRequest request, Events events);

  // Forward to MachineDriver. REQUIRES: Join was called.
  void Post(MachineDriver::Event event) { driver_->Post(std::move(event)); }
  void DriveUntil(absl::FunctionRef<bool()> done, absl::Time deadline) {
    driver_->DriveUntil(done, deadline);
  }

  // Stops the driver thread. After this, the driver calls no hook, but a
  // session that fails still calls driver.ended.
  void StopDriving() { driver_->Stop(); }

  // Sends a message to the coordinator, if a session is open.
  void Send(const MemberMessage& message) { session_->Send(message); }
  // Opens no further session. An open session stays until the coordinator ends
  // it or this is destroyed.
  void StopSession() { session_->Stop(); }

  // Member, for events on the driving thread only.
  Member& member() { return *member_; }
  const MachineDriver& driver() const { return *driver_; }
  const Transport& transport() const { return *transport_; }

 private:
  MemberProcess(Options options, ControlServer* control,
                std::unique_ptr<Transport> transport);
  SessionClient::Events SessionEvents();
  // Stores the state of the machine in stock_. Runs on the driving thread.
  void TakeStock() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the heartbeat to send; nothing if the driver stands still.
  std::optional<Heartbeat> MakeHeartbeat() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  ControlServer* const control_;  // Answers liveness checks. Not owned.
  const std::unique_ptr<Transport> transport_;
  Events events_;      // Constant after Join.
  StallWatch stalls_;  // Used by the driving thread only.

  Mutex mu_;
  Heartbeat stock_ ABSL_GUARDED_BY(mu_);  // Last state of the machine.

  std::unique_ptr<Member> member_;         // Called by the driving thread only.
  std::unique_ptr<MachineDriver> driver_;  // Uses member and transport.
  std::unique_ptr<SessionClient> session_;  // Posts to the driver.
};

}  // namespace nereus
