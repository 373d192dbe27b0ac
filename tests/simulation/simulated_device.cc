#include "tests/simulation/simulated_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"

namespace nereus {
namespace {

// Longest time from a change of the board until a waiting process runs.
constexpr absl::Duration kWakeMax = absl::Microseconds(50);

// Time after which a waiting client looks at the board in any case.
constexpr absl::Duration kLookInterval = absl::Milliseconds(50);

}  // namespace

SimulatedDevice::SimulatedDevice(EventQueue* events, uint64_t seed,
                                 int64_t memory_bytes)
    : events_(*events),
      random_(seed),
      memory_(std::make_unique<TurnBoardMemory>()) {
  TurnBoard::Format(*memory_, memory_bytes);
}

SimulatedDevice::Client& SimulatedDevice::Add(Process process) {
  const auto free = std::find(alive_.begin(), alive_.end(), false);
  NEREUS_CHECK(free != alive_.end());
  const size_t slot = free - alive_.begin();
  alive_[slot] = true;
  auto client = std::make_unique<Client>();
  client->device_ = this;
  client->process_ = std::move(process);
  client->board_ = std::make_unique<TurnBoard>(
      memory_.get(), static_cast<int>(slot),
      TurnBoard::Events{[this](int other) { return alive_[other]; },
                        [this] { OnChange(); }});
  clients_.push_back(std::move(client));
  return *clients_.back();
}

// The other clients are not told: they find out when they look.
void SimulatedDevice::Kill(Client& client) {
  alive_[client.board_->own()] = false;
  client.awaits_ = nullptr;
  client.taker_ = nullptr;
}

TurnTable SimulatedDevice::Table() const {
  const TurnBoard reader(memory_.get(), /*own=*/-1,
                         {[this](int slot) { return alive_[slot]; }, [] {}});
  absl::StatusOr<TurnTable> table = reader.Read();
  NEREUS_CHECK(table.ok()) << table.status();
  return *table;
}

void SimulatedDevice::Client::Await(Task has_turn) {
  if (awaits_ == nullptr) asked_at_ = device_->events_.now();
  awaits_ = std::move(has_turn);
  Try();
}

void SimulatedDevice::Client::Try() {
  if (awaits_ == nullptr) return;
  EventQueue& events = device_->events_;
  const auto until = taker_->Try(events.now());
  NEREUS_CHECK(until.ok()) << until.status();
  device_->Observe();
  if (!until->has_value()) {
    device_->OnTurn(*taker_, asked_at_);
    return std::exchange(awaits_, nullptr)();
  }
  events.At(std::min(**until, events.now() + kLookInterval),
            [this] { process_.run([this] { Try(); }); });
}

void SimulatedDevice::OnTurn(const TurnTaker& taker, absl::Time asked_at) {
  const TurnSlot& slot = taker.slot();
  wait_max_ = std::max(wait_max_, events_.now() - asked_at);
  const Turn turn = {slot.job_id, slot.rank, slot.step};
  if (history_.empty() || history_.back() != turn) history_.push_back(turn);
}

void SimulatedDevice::OnChange() {
  Observe();
  for (const auto& client : clients_) {
    if (client->awaits_ == nullptr) continue;
    Client* const waiting = client.get();
    events_.After(random_.Uniform() * kWakeMax, [waiting] {
      waiting->process_.run([waiting] { waiting->Try(); });
    });
  }
}

void SimulatedDevice::Observe() {
  const TurnTable table = Table();
  const absl::Time now = events_.now();
  int holders = 0;
  bool asks = false;
  for (const auto& client : clients_) {
    if (client->taker_ == nullptr) continue;
    const TurnTaker& taker = *client->taker_;
    holders += taker.Holds();
    const int index = client->board_->own();
    const TurnSlot& slot = table.slots[index];
    asks |= slot.state == TurnSlot::State::kAsks &&
            client->process_.is_running() &&
            (slot.is_admitted || FitsMemory(table, index));
  }
  holders_max_ = std::max(holders_max_, holders);
  const bool is_free = table.holder < 0;
  if (is_free && asks) {
    idle_since_ = idle_since_.value_or(now);
  } else if (idle_since_.has_value()) {
    idle_max_ = std::max(idle_max_, now - *idle_since_);
    idle_since_.reset();
  }
}

}  // namespace nereus
