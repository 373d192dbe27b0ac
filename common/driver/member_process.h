#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/driver/link_watch.h"
#include "common/driver/machine_driver.h"
#include "common/driver/tracer.h"
#include "common/protocol/member.h"
#include "common/protocol/membership.h"
#include "common/rpc/control_server.h"
#include "common/rpc/session_client.h"
#include "common/transport/transport.h"
#include "common/transport/transport_options.h"

namespace nereus {

// Notices that a member has waited too long for one round. MemberProcess calls
// Watch once for each heartbeat. Not thread-safe. Remembers only one round, the
// oldest open one.
class StallWatch {
 public:
  // Takes the oldest open round of the member as `waiting`; nothing if no round
  // is open. `now` is the time of the call. If this round has been the oldest
  // open round for `threshold` or longer, returns it, with Stall::waited set.
  // Otherwise returns nothing.
  std::optional<Stall> Watch(std::optional<Stall> waiting, absl::Time now,
                             absl::Duration threshold) {
    const bool same = waiting.has_value() && round_.has_value() &&
                      *round_ == std::pair(waiting->layer, waiting->round);
    if (!same) since_ = now;
    round_.reset();
    if (!waiting.has_value()) return std::nullopt;
    round_ = std::pair(waiting->layer, waiting->round);
    waiting->waited = now - since_;
    return waiting->waited >= threshold ? waiting : std::nullopt;
  }

 private:
  // Layer and round that the last call of Watch took, if any.
  std::optional<std::pair<int32_t, int64_t>> round_;
  absl::Time since_;  // Time of the first call that took round_.
};

// Everything that a worker or a server needs for its membership in a job: the
// transport to its peers, the member with its machine, the driver, and the
// session with the coordinator.
//
//   session <--messages--> driver            <--frames--> transport
//                          (member, machine)
//
// The worker's client or the server owns it. The parts call each other from
// several threads, so the destructor must destroy them in a certain order: a
// session that outlived the driver, for example, would post events to freed
// memory. A server that counted as dead destroys its MemberProcess and makes
// another one.
//
// After Join, these are thread-safe: Post, DriveUntil, Send, StopSession, port,
// data_address, driver and transport.
class MemberProcess {
 public:
  struct Options {
    TransportOptions transport;       // Address where peers connect, and more.
    std::string node;                 // Value of --node, or "".
    std::string coordinator_address;  // "host:port".
    // Longest time to try to connect to the coordinator, or to a peer.
    absl::Duration connect_timeout = absl::Seconds(60);
    int layers = 0;  // Number of layers that the driver's traffic() counts.
    // Time for which a round must have been the oldest open round before a
    // heartbeat reports it (Heartbeat::stall).
    absl::Duration stall_threshold = absl::Seconds(5);
  };

  // Hooks of the owner. make_machine, take_stock and the driver's events run on
  // the driving thread. `heard` runs on threads of the session, `heartbeat` on
  // these or on the driving thread. None may wait.
  struct Events {
    // Makes the machine for the first epoch, and again for each epoch that
    // begins from the base round.
    Member::MakeMachine make_machine;
    // Hooks of the driver. MemberProcess sets send_message and send_heartbeat
    // itself. If the session fails, MemberProcess also calls driver.ended, on a
    // thread of the session.
    MachineDriver::Events driver;
    // Receives each message of the coordinator before the member does. May be
    // null.
    std::function<void(const CoordinatorMessage&)> heard = nullptr;
    // Returns the state of the machine, which the next heartbeat reports. Its
    // `stall` must be the oldest open round, however long this round has
    // waited. Runs once for each heartbeat, unless the driving thread has not
    // run the call for the last heartbeat yet; and before a heartbeat that the
    // machine asks for.
    std::function<Heartbeat()> take_stock;
    // Changes values of a heartbeat just before it is sent. May be null.
    std::function<void(Heartbeat&)> heartbeat = nullptr;
  };

  // Makes a MemberProcess and listens for peers. While a session is open, each
  // heartbeat tells `control` whether the driver is alive, and `control`
  // answers liveness checks with this. While no session is open, the answer
  // does not change. `control` is not owned and must outlive this. Errors:
  // those of SocketTransport::Start.
  static absl::StatusOr<std::unique_ptr<MemberProcess>> Listen(
      Options options, ControlServer* control);

  // Stops the driver thread, then ends the session, then closes all
  // connections.
  ~MemberProcess();

  // Port at which peers connect.
  int port() const { return transport_->port(); }
  // Address at which peers connect, "host:port".
  std::string data_address() const;

  // Starts the driver and the session, and returns. The member then asks the
  // coordinator to admit this process. Join fills in the request's version,
  // build, incarnation, data address and host. Must be called once only.
  void Join(JoinRequest request, Events events);

  // Call the functions of MachineDriver with these names. REQUIRES: Join was
  // called.
  void Post(MachineDriver::Event event) { driver_->Post(std::move(event)); }
  void DriveUntil(absl::FunctionRef<bool()> done, absl::Time deadline) {
    driver_->DriveUntil(done, deadline);
  }

  // Stops the driver (MachineDriver::Stop). After this, the driver calls no
  // hook, but MemberProcess still calls driver.ended if the session fails.
  void StopDriving() { driver_->Stop(); }

  // Sends a message to the coordinator, if a session is open.
  void Send(const MemberMessage& message) { session_->Send(message); }
  // Makes this process open no further session. An open session goes on until
  // the coordinator ends it or this object is destroyed.
  void StopSession() { session_->Stop(); }

  // Member of this process. Only the driving thread may use it.
  Member& member() { return *member_; }
  const MachineDriver& driver() const { return *driver_; }
  const Transport& transport() const { return *transport_; }
  // Keeper of the spans of this process while the job is traced.
  SpanRecorder& recorder() { return tracer_.recorder(); }
  // Sets another source of such spans (Tracer::SetSource).
  void AddSpanSource(SpanSource* source) { tracer_.SetSource(source); }

 private:
  MemberProcess(Options options, ControlServer* control,
                std::unique_ptr<Transport> transport);
  SessionClient::Events SessionEvents();
  // Stores the state of the machine in stock_. Only the driving thread calls
  // this.
  void TakeStock() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a heartbeat with the last state of the machine.
  Heartbeat StockHeartbeat(const std::optional<LongWork>& work)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Sends a heartbeat with the present state. Only the driving thread calls
  // this.
  void SendHeartbeatNow() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the heartbeat that is due; nothing if the driver stands still, and
  // so no heartbeat may be sent.
  std::optional<Heartbeat> MakeHeartbeat() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  ControlServer* const control_;  // Answers liveness checks. Not owned.
  const std::unique_ptr<Transport> transport_;
  Events events_;      // Constant after Join.
  StallWatch stalls_;  // These two: used by the driving thread only.
  LinkWatch links_;

  Mutex mu_;
  Heartbeat stock_ ABSL_GUARDED_BY(mu_);  // Last state of the machine.

  // Session of the tracer, which uses it on the session's own threads, also
  // while the destructor destroys it. Null before Join.
  SessionClient* sender_ = nullptr;
  Tracer tracer_;                          // Uses session_, once that is there.
  std::unique_ptr<Member> member_;         // Used by the driving thread only.
  std::unique_ptr<MachineDriver> driver_;  // Uses member_ and transport_.
  std::unique_ptr<SessionClient> session_;  // Posts events to driver_.
};

}  // namespace nereus
