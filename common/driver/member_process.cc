#include "common/driver/member_process.h"

#include <cstdint>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/identity.h"
#include "common/base/log_repeats.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/transport/socket/socket_transport.h"

namespace nereus {
namespace {

// Time that the job may wait before the log lines about it are warnings.
// Processes often start some seconds apart.
constexpr absl::Duration kWarnAfter = absl::Seconds(10);

// Returns the host claim of this process. Without `node`, processes with the
// same kernel and network namespace share a host. With `node`, the network
// namespace does not count, because each container of a node may have its own.
HostClaim ClaimHost(const std::string& node) {
  const std::string boot = BootId();
  const uint64_t network = NetworkNamespace();
  if (boot.empty() || !node.empty()) return {node, boot};
  if (network == 0) return {};
  return {"", absl::StrCat(boot, "/", network)};
}

}  // namespace

// The transport listens before Join is called, because Join tells the
// coordinator the port.
absl::StatusOr<std::unique_ptr<MemberProcess>> MemberProcess::Listen(
    Options options, ControlServer* control) {
  auto transport = NEREUS_TRY(SocketTransport::Start(options.transport));
  return std::unique_ptr<MemberProcess>(
      new MemberProcess(std::move(options), control, std::move(transport)));
}

MemberProcess::MemberProcess(Options options, ControlServer* control,
                             std::unique_ptr<Transport> transport)
    : options_(std::move(options)),
      control_(control),
      transport_(std::move(transport)),
      tracer_(
          [this](const MemberMessage& message) { sender_->Send(message); }) {}

MemberProcess::~MemberProcess() {
  // The session posts events to the driver, and the driver sends messages in
  // the session. So the driver thread ends first; then the session is
  // destroyed, and then the driver with its queue.
  if (driver_ != nullptr) driver_->Stop();
  session_.reset();
  driver_.reset();
  transport_->Shutdown(absl::ZeroDuration());
}

std::string MemberProcess::data_address() const {
  return JoinHostPort(options_.transport.host, transport_->port());
}

void MemberProcess::Join(JoinRequest request, Events events) {
  events_ = std::move(events);
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.incarnation = DrawUniqueId();
  request.data_address = data_address();
  request.host = ClaimHost(options_.node);
  // Each of the three uses those made before it. The driver also uses the
  // session, but not before the first event, and the session posts this event.
  member_ = std::make_unique<Member>(std::move(request), events_.make_machine);
  MachineDriver::Events driver = events_.driver;
  driver.recorder = &tracer_.recorder();
  driver.send_message = [this](const MemberMessage& message) {
    session_->Send(message);
  };
  driver.send_heartbeat = [this] { SendHeartbeatNow(); };
  driver_ = std::make_unique<MachineDriver>(
      transport_.get(), member_.get(), options_.layers,
      options_.connect_timeout, std::move(driver));
  session_ = std::make_unique<SessionClient>(
      SessionClientOptions{options_.coordinator_address,
                           options_.connect_timeout, options_.connect_timeout},
      SessionEvents());
  sender_ = session_.get();
  session_->Start();
}

SessionClient::Events MemberProcess::SessionEvents() {
  SessionClient::Events events;
  events.opened = [this] {
    tracer_.Drop();
    // The member sends messages again that the last session may have lost.
    driver_->Post([this](Outbox& out) { member_->OnSession(out); });
  };
  // `repeats`: messages that say why the job waits, which come every three
  // seconds.
  events.message = [this, repeats = LogRepeats()](
                       const CoordinatorMessage& message) mutable {
    if (tracer_.OnMessage(message)) return;
    if (const auto* waiting = std::get_if<Waiting>(&message)) {
      if (const auto lasts = repeats.Note(waiting->text, SteadyNow())) {
        WriteLog(*lasts >= kWarnAfter ? LogLevel::kWarning : LogLevel::kInfo,
                 {LogEvent::kWaiting},
                 absl::StrCat(waiting->text, LastsText(*lasts)));
      }
    } else {
      repeats.Clear();
    }
    if (events_.heard != nullptr) events_.heard(message);
    driver_->Post(
        [this, message](Outbox& out) { member_->OnMessage(message, out); });
  };
  events.heartbeat = [this] { return MakeHeartbeat(); };
  events.failed = [this](const absl::Status& why) {
    events_.driver.ended(why);
    driver_->Post([](Outbox&) {});  // So that DriveUntil tests done() now.
  };
  return events;
}

// The driving thread runs this when the heartbeat that has asked for it may
// have been sent already. So a heartbeat that is due reports the state at about
// the time of the heartbeat before it.
void MemberProcess::TakeStock() {
  Heartbeat stock = events_.take_stock();
  stock.stall = stalls_.Watch(std::move(stock.stall), SteadyNow(),
                              options_.stall_threshold);
  transport_->MeasureLinks();
  links_.Measure(transport_->traffic(), SteadyNow(), stock.activity);
  MutexLock lock(&mu_);
  stock_ = std::move(stock);
}

std::optional<Heartbeat> MemberProcess::MakeHeartbeat() {
  const Pulse::Beat beat = driver_->OnHeartbeatDue([this] { TakeStock(); });
  control_->SetAlive(beat.is_alive);
  if (!beat.is_alive) return std::nullopt;
  return StockHeartbeat(beat.work);
}

Heartbeat MemberProcess::StockHeartbeat(const std::optional<LongWork>& work) {
  Heartbeat heartbeat;
  {
    MutexLock lock(&mu_);
    heartbeat = stock_;
  }
  heartbeat.work = work;
  if (events_.heartbeat != nullptr) events_.heartbeat(heartbeat);
  return heartbeat;
}

void MemberProcess::SendHeartbeatNow() {
  TakeStock();
  session_->Send(StockHeartbeat(std::nullopt));
}

}  // namespace nereus
