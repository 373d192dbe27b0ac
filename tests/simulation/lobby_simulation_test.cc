// Processes gather before they join, die and come back, while sessions break
// and the coordinator crashes, restarts and cannot save.
//
// The sessions of SimulatedCluster are those of members. So this test has a
// small driver of its own for the two machines of a lobby: LobbyLedger, one in
// each process, and Coordinator. Read LobbyWorld from top to bottom.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/random.h"
#include "common/base/version.h"
#include "common/messages/messages.h"
#include "common/network/event_queue.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/job_state.h"
#include "server/coordinator/save_first.h"
#include "tests/testing/test_seed.h"
#include "worker/machine/lobby_ledger.h"

namespace nereus {
namespace {

constexpr int kSeeds = 300;
constexpr int kGatherings = 5;
// Time for which faults are injected.
constexpr absl::Duration kFaultsFor = absl::Seconds(20);

class LobbyWorld {
 public:
  LobbyWorld(uint64_t seed, int count) : random_(seed) {
    options_.spec.name = "simulated";
    options_.job_id = 7;
    options_.spec.workers = count;
    options_.spec.shards = 1;
    coordinator_.emplace(options_);
    processes_.resize(count);
    sent_.resize(kGatherings);
    Tick();
    for (int number = 0; number < count; ++number) {
      events_.After(Draw(absl::Seconds(2)), [this, number] { Start(number); });
    }
  }

  // Runs with faults, and then until all processes have gathered.
  void Run() {
    const absl::Time faults_end = events_.now() + kFaultsFor;
    events_.After(Draw(absl::Seconds(1)), [=, this] { Disturb(faults_end); });
    const absl::Time deadline = faults_end + absl::Minutes(1);
    while (events_.now() < deadline && !IsDone() && events_.RunNext()) {
    }
    ASSERT_TRUE(IsDone()) << "a process still waits";
    ASSERT_GT(answers_.size(), 0u);
  }

  // Lets a server and all processes join. Returns the ranks of the processes,
  // by their numbers.
  std::map<int32_t, int32_t> Join() {
    if (!coordinator_.has_value()) Restart();
    CoordinatorOutbox out;
    JoinRequest request;
    request.protocol_version = kProtocolVersion;
    request.build = kVersion;
    request.job = options_.spec.name;
    request.data_address = request.name = "server";
    request.role = Role::kShard;
    request.incarnation = 1;
    coordinator_->OnMessage(1000000, request, events_.now(), out);
    request.role = Role::kWorker;
    request.layers = {
        {.name = "line", .m = 1, .n = 2, .parameters = 2, .rows = 1}};
    std::vector<int32_t> order(processes_.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int32_t>(i);
      std::swap(order[i], order[random_.Below(i + 1)]);
    }
    std::map<SessionId, int32_t> numbers;
    for (const int32_t number : order) {
      const SessionId session = 2000000 + number;
      numbers[session] = number;
      request.name = request.data_address = absl::StrCat("process-", number);
      request.incarnation = static_cast<uint64_t>(session);
      request.launch_rank = number;
      coordinator_->OnMessage(session, request, events_.now(), out);
    }
    std::map<int32_t, int32_t> ranks;
    for (const CoordinatorAction& action : out) {
      const auto* const send = std::get_if<SendToMember>(&action);
      if (send == nullptr) continue;
      const auto* const refusal = std::get_if<Refusal>(&send->message);
      EXPECT_EQ(refusal, nullptr) << refusal->why;
      if (!numbers.contains(send->session)) continue;
      const auto* const start = std::get_if<EpochStart>(&send->message);
      if (start != nullptr) ranks[numbers[send->session]] = start->self.rank;
    }
    return ranks;
  }

  int deaths() const { return deaths_; }
  int crashes() const { return crashes_; }

 private:
  struct Process {
    std::optional<LobbyLedger> ledger;  // Empty while the process is dead.
    int life = 0;
    int ended = 0;  // Number of gatherings that have ended in this life.
    std::optional<SessionId> session;
    absl::Time sent_at;  // Arrival of the last message to the coordinator.
    absl::Time told_at;  // Arrival of the last message from it.
  };

  absl::Duration Draw(absl::Duration most) { return most * random_.Uniform(); }
  absl::Duration DrawDelay() { return Draw(absl::Milliseconds(300)); }

  bool IsDone() const {
    return std::all_of(
        processes_.begin(), processes_.end(), [](const Process& each) {
          return each.ledger.has_value() && each.ended == kGatherings;
        });
  }

  // ---- Processes.

  void Start(int number) {
    Process& process = processes_[number];
    LobbyGather made;
    made.protocol_version = kProtocolVersion;
    made.build = kVersion;
    made.job = options_.spec.name;
    made.number = number;
    made.count = static_cast<int32_t>(processes_.size());
    made.incarnation = random_.Next() | 1;
    process.ledger.emplace(made);
    ++process.life;
    process.ended = 0;
    Gather(number);
    Open(number, process.life);
  }

  void Gather(int number) {
    Process& process = processes_[number];
    const std::string value =
        absl::StrCat(number, " in life ", process.life, ", ", process.ended);
    sent_[process.ended].insert(value);
    const auto message = process.ledger->Begin(value);
    ASSERT_TRUE(message.ok()) << message.status();
    if (process.session.has_value()) Send(number, **message);
  }

  void Open(int number, int life) {
    Process& process = processes_[number];
    if (!process.ledger.has_value() || process.life != life ||
        process.session.has_value()) {
      return;
    }
    if (!coordinator_.has_value()) {
      events_.After(absl::Milliseconds(100), [=, this] { Open(number, life); });
      return;
    }
    process.session = next_session_++;
    open_[*process.session] = number;
    Send(number, process.ledger->OnSession());
  }

  void Send(int number, const LobbyGather& gather) {
    Process& process = processes_[number];
    const SessionId session = *process.session;
    const auto read = FromProto(ToProto(MemberMessage(gather)));
    ASSERT_TRUE(read.ok()) << read.status();
    process.sent_at = std::max(process.sent_at, events_.now() + DrawDelay());
    events_.At(process.sent_at, [this, session, message = *read] {
      if (!open_.contains(session)) return;
      CoordinatorOutbox out;
      coordinator_->OnMessage(session, message, events_.now(), out);
      Carry(std::move(out));
    });
  }

  void Hear(int number, SessionId session, const CoordinatorMessage& message) {
    Process& process = processes_[number];
    if (process.session != session) return;
    ASSERT_TRUE(process.ledger->OnMessage(message))
        << std::get<Refusal>(message).why;
    if (!process.ledger->is_done()) return;
    const auto values = process.ledger->Take();
    ASSERT_TRUE(values.ok()) << values.status();
    Check(process.ended, *values);
    ++process.ended;
    if (process.ended == kGatherings) return;
    events_.After(Draw(absl::Seconds(1)), [=, this, life = process.life] {
      Process& process = processes_[number];
      if (process.ledger.has_value() && process.life == life) Gather(number);
    });
  }

  // The law: a gathering has one answer for all lives of all processes, with a
  // value of each process.
  void Check(int index, const std::vector<std::string>& values) {
    const auto& first = answers_.try_emplace(index, values).first->second;
    ASSERT_EQ(values, first) << "gathering " << index;
    ASSERT_EQ(values.size(), processes_.size());
    for (size_t number = 0; number < values.size(); ++number) {
      ASSERT_TRUE(sent_[index].contains(values[number])) << values[number];
      ASSERT_TRUE(values[number].starts_with(absl::StrCat(number, " ")));
    }
  }

  void EndAtCoordinator(SessionId session) {
    if (open_.erase(session) == 0) return;
    CoordinatorOutbox out;
    coordinator_->OnSessionEnd(session, events_.now(), out);
    Carry(std::move(out));
  }

  void Break(int number) {
    Process& process = processes_[number];
    if (!process.session.has_value()) return;
    const SessionId session = *std::exchange(process.session, std::nullopt);
    events_.After(DrawDelay(), [=, this] { EndAtCoordinator(session); });
    events_.After(DrawDelay(),
                  [=, this, life = process.life] { Open(number, life); });
  }

  void Kill(int number) {
    if (!processes_[number].ledger.has_value()) return;
    ++deaths_;
    Break(number);
    processes_[number].ledger.reset();
    events_.After(Draw(absl::Seconds(3)), [=, this] { Start(number); });
  }

  // ---- The coordinator.

  void Tick() {
    if (coordinator_.has_value()) {
      CoordinatorOutbox out;
      coordinator_->OnTick(events_.now(), out);
      Carry(std::move(out));
    }
    events_.After(absl::Milliseconds(200), [this] { Tick(); });
  }

  void Carry(CoordinatorOutbox out) {
    actions_.Add(std::move(out));
    GoOn();
  }

  void GoOn() {
    while (const auto action = actions_.Next()) Do(*action);
    if (!coordinator_.has_value()) return;
    const auto state = actions_.BeginSave(events_.now());
    if (state == nullptr) return;
    events_.After(Draw(absl::Milliseconds(20)), [this, state, life = crashes_] {
      if (life != crashes_) return;
      const bool fails = events_.now() < saves_fail_until_;
      if (!fails) saved_ = EncodeState(*state);
      actions_.OnSaved(
          fails ? UnavailableError("the disk is gone") : absl::OkStatus(),
          events_.now());
      GoOn();
    });
  }

  void Do(const CoordinatorAction& action) {
    if (const auto* send = std::get_if<SendToMember>(&action)) {
      const auto found = open_.find(send->session);
      if (found == open_.end()) return;
      const auto read = FromProto(ToProto(send->message));
      ASSERT_TRUE(read.ok()) << read.status();
      Process& process = processes_[found->second];
      process.told_at = std::max(process.told_at, events_.now() + DrawDelay());
      events_.At(process.told_at,
                 [this, number = found->second, session = send->session,
                  message = *read] { Hear(number, session, message); });
    } else if (const auto* end = std::get_if<EndSession>(&action)) {
      const auto found = open_.find(end->session);
      if (found == open_.end()) return;
      const int number = found->second;
      open_.erase(found);
      if (processes_[number].session == end->session) Break(number);
    }
  }

  void Crash() {
    if (!coordinator_.has_value()) return;
    ++crashes_;
    coordinator_.reset();
    actions_ = SaveFirst();
    for (const auto& [session, number] : std::exchange(open_, {})) {
      if (processes_[number].session == session) Break(number);
    }
    events_.After(Draw(absl::Seconds(2)), [this] { Restart(); });
  }

  void Restart() {
    if (coordinator_.has_value()) return;
    if (!saved_.has_value()) {
      coordinator_.emplace(options_);
      return;
    }
    auto state = DecodeState(*saved_);
    ASSERT_TRUE(state.ok()) << state.status();
    coordinator_.emplace(options_, *std::move(state), events_.now());
  }

  void Disturb(absl::Time until) {
    if (events_.now() >= until) return;
    const auto number = static_cast<int>(random_.Below(processes_.size()));
    switch (random_.Below(5)) {
      case 0:
      case 1:
        Kill(number);
        break;
      case 2:
        Break(number);
        break;
      case 3:
        Crash();
        break;
      default:
        saves_fail_until_ = events_.now() + Draw(absl::Seconds(1));
        break;
    }
    events_.After(Draw(absl::Seconds(2)), [=, this] { Disturb(until); });
  }

  Random random_;
  EventQueue events_;
  CoordinatorOptions options_;
  std::optional<Coordinator> coordinator_;  // Empty while it is dead.
  SaveFirst actions_;
  std::optional<std::string> saved_;  // Last saved state.
  absl::Time saves_fail_until_ = absl::InfinitePast();
  std::vector<Process> processes_;  // Processes, by number.
  std::map<SessionId, int> open_;   // Sessions open at the coordinator.
  SessionId next_session_ = 0;
  // Values that were sent for each gathering.
  std::vector<std::set<std::string>> sent_;
  std::map<int, std::vector<std::string>> answers_;  // First answers heard.
  int deaths_ = 0;
  int crashes_ = 0;
};

TEST(LobbySimulationTest, AllLivesOfAllProcessesGatherTheSame) {
  int deaths = 0;
  int crashes = 0;
  for (const uint64_t seed : TestSeeds(kSeeds)) {
    SCOPED_TRACE(ReplayHint(seed));
    const int count = 1 + static_cast<int>(seed % 5);
    LobbyWorld world(seed, count);
    world.Run();
    if (HasFatalFailure()) return;
    deaths += world.deaths();
    crashes += world.crashes();
    const std::map<int32_t, int32_t> ranks = world.Join();
    ASSERT_EQ(ranks.size(), static_cast<size_t>(count));
    for (const auto& [number, rank] : ranks) ASSERT_EQ(rank, number);
  }
  EXPECT_GT(deaths, 0);
  EXPECT_GT(crashes, 0);
}

}  // namespace
}  // namespace nereus
