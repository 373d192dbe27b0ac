#include "tests/server/coordinator_driver.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

constexpr absl::Duration kTickInterval = absl::Milliseconds(500);

void Append(const Reaction& more, Reaction& reaction) {
  const auto append = [](const auto& from, auto& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(more.sent, reaction.sent);
  append(more.ended, reaction.ended);
  append(more.announced, reaction.announced);
  append(more.saved, reaction.saved);
  append(more.completed, reaction.completed);
  append(more.set_aside, reaction.set_aside);
  append(more.dropped, reaction.dropped);
  append(more.order, reaction.order);
}

}  // namespace

CoordinatorOptions OptionsOf(int workers, int shards, int max_workers) {
  CoordinatorOptions options;
  options.spec.name = "training";
  options.spec.rules = PlanRules();
  options.spec.options = JobOptions();
  options.job_id = kTestJobId;
  options.spec.workers = workers;
  options.spec.shards = shards;
  options.spec.max_workers = max_workers;
  return options;
}

CoordinatorOptions DurableOptions(int workers, int shards, int max_workers) {
  CoordinatorOptions options = OptionsOf(workers, shards, max_workers);
  options.has_checkpoints = true;
  return options;
}

CoordinatorOptions BackupOptions(int shards) {
  CoordinatorOptions options = OptionsOf(/*workers=*/2, shards);
  options.spec.options.backup = true;
  return options;
}

JoinRequest WorkerRequest(const std::string& name) {
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = "test";
  request.job = "training";
  request.incarnation = std::hash<std::string>()(name);
  request.name = name;
  request.data_address = name + ":1";
  request.layers = {VectorLayer("scale", 8),
                    FactorLayer("fc", 64, 64, true, 2)};
  return request;
}

JoinRequest ShardRequest(int shard, bool has_checkpoints) {
  JoinRequest request = WorkerRequest("s" + std::to_string(shard));
  request.role = Role::kShard;
  request.shard = shard;
  request.has_checkpoints = has_checkpoints;
  request.layers.clear();
  return request;
}

JoinRequest AnotherShard(int shard, bool has_checkpoints) {
  JoinRequest request = ShardRequest(shard, has_checkpoints);
  request.incarnation = 99 + shard;
  request.name = "another";
  request.data_address = "another:1";
  return request;
}

Heartbeat HeartbeatOf(int64_t begun_step, int64_t round) {
  Heartbeat heartbeat;
  heartbeat.begun_step = begun_step;
  heartbeat.round = round;
  return heartbeat;
}

CheckpointPart PartOf(int shard, int64_t round, uint64_t epoch) {
  CheckpointPart part;
  part.epoch = epoch;
  part.shard = shard;
  part.round = round;
  part.file = absl::StrCat("shard-", shard, "-epoch-", epoch);
  part.bytes = 100 + shard;
  part.crc = 7;
  return part;
}

absl::Status RefusalIn(const Reaction& reaction, SessionId session) {
  const auto hearers = HearersOf<Refusal>(reaction);
  if (absl::c_count(hearers, session) == 0) {
    return absl::OkStatus();
  }
  EXPECT_EQ(absl::c_count(reaction.ended, session), 1);
  return Heard<Refusal>(reaction, session).why;
}

void ExpectRefusal(const Reaction& reaction, SessionId session,
                   absl::StatusCode code, const std::string& text) {
  const absl::Status why = RefusalIn(reaction, session);
  EXPECT_EQ(why.code(), code) << why;
  EXPECT_THAT(std::string(why.message()), testing::HasSubstr(text));
}

std::vector<PeerId> SeatsOf(const EpochStart& start) {
  std::vector<PeerId> members;
  for (const EpochMember& each : start.epoch_members)
    members.push_back(each.id);
  return members;
}

CoordinatorDriver::CoordinatorDriver(CoordinatorOptions options)
    : options_(std::move(options)), coordinator_(std::in_place, options_) {}

Reaction CoordinatorDriver::React(
    const std::function<void(CoordinatorOutbox&)>& event) {
  CoordinatorOutbox out;
  event(out);
  Reaction reaction;
  for (const CoordinatorAction& action : out) {
    if (const auto* announce = std::get_if<Announce>(&action)) {
      reaction.announced.push_back(announce->text);
    } else if (const auto* end = std::get_if<EndSession>(&action)) {
      EXPECT_TRUE(sessions_[end->session].open) << "session " << end->session;
      sessions_[end->session].open = false;
      reaction.ended.push_back(end->session);
    } else if (const auto* send = std::get_if<SendToMember>(&action)) {
      Note(*send);
      reaction.sent.push_back(*send);
      reaction.order.push_back("send");
    } else if (const auto* save = std::get_if<SaveState>(&action)) {
      reaction.saved.push_back(save->state);
      reaction.order.push_back("save");
    } else if (const auto* aside = std::get_if<SetCheckpointAside>(&action)) {
      reaction.set_aside.push_back(*aside);
    } else if (const auto* drop = std::get_if<DropManifest>(&action)) {
      reaction.dropped.push_back(*drop);
    } else {
      reaction.completed.push_back(std::get<CompleteCheckpoint>(action));
    }
  }
  return reaction;
}

void CoordinatorDriver::Note(const SendToMember& send) {
  Session& session = sessions_[send.session];
  EXPECT_TRUE(session.open) << "session " << send.session;
  if (const auto* start = std::get_if<EpochStart>(&send.message)) {
    session.start = *start;
    session.target.reset();
  } else if (const auto* prepare = std::get_if<PrepareEpoch>(&send.message)) {
    session.target = prepare->target;
  }
}

Reaction CoordinatorDriver::Gather() {
  Reaction last;
  for (int shard = 0; shard < options_.spec.shards; ++shard) {
    last = Say(kShard0 + shard, ShardRequest(shard, options_.has_checkpoints));
  }
  for (int worker = 0; worker < options_.spec.workers; ++worker) {
    last = Say(kWorker0 + worker, WorkerRequest("w" + std::to_string(worker)));
  }
  EXPECT_EQ(state(), JobState::kRunning);
  return last;
}

Reaction CoordinatorDriver::Say(SessionId session,
                                const MemberMessage& message) {
  return React([&](CoordinatorOutbox& out) {
    coordinator_->OnMessage(session, message, now_, out);
  });
}

Reaction CoordinatorDriver::Break(SessionId session) {
  sessions_[session].open = false;
  return React([&](CoordinatorOutbox& out) {
    coordinator_->OnSessionEnd(session, now_, out);
  });
}

Reaction CoordinatorDriver::Lose(SessionId session) {
  Break(session);
  return Pass(absl::Seconds(1.5));
}

Reaction CoordinatorDriver::Replace(SessionId session, int shard) {
  return Say(session, AnotherShard(shard, options_.has_checkpoints));
}

Reaction CoordinatorDriver::Tick() {
  return React(
      [&](CoordinatorOutbox& out) { coordinator_->OnTick(now_, out); });
}

Reaction CoordinatorDriver::Fail(const std::string& reason) {
  return React(
      [&](CoordinatorOutbox& out) { coordinator_->Fail(reason, out); });
}

Reaction CoordinatorDriver::RequestCheckpoint() {
  return React([&](CoordinatorOutbox& out) {
    const absl::Status status = coordinator_->RequestCheckpoint(now_, out);
    EXPECT_TRUE(status.ok()) << status;
  });
}

absl::Status CoordinatorDriver::TryRequestCheckpoint() {
  absl::Status status;
  React([&](CoordinatorOutbox& out) {
    status = coordinator_->RequestCheckpoint(now_, out);
  });
  return status;
}

Reaction CoordinatorDriver::Checkpoint(int64_t round,
                                       const absl::Status& written) {
  return React([&](CoordinatorOutbox& out) {
    coordinator_->OnCheckpoint(round, written, now_, out);
  });
}

Reaction CoordinatorDriver::SetAside(int64_t round,
                                     std::optional<int64_t> older) {
  CheckpointSetAside found;
  found.folder = "set-aside";
  if (older.has_value()) {
    found.older.emplace();
    found.older->round = *older;
    found.older->contributions = 2 * (*older + 1);
  }
  return React([&](CoordinatorOutbox& out) {
    coordinator_->OnSetAside(round, found, now_, out);
  });
}

Reaction CoordinatorDriver::FailSetAside(int64_t round,
                                         const absl::Status& why) {
  return React([&](CoordinatorOutbox& out) {
    coordinator_->OnSetAside(round, why, now_, out);
  });
}

Reaction CoordinatorDriver::MakeCheckpoint(int64_t round) {
  for (int shard = 0; shard < options_.spec.shards; ++shard) {
    Say(kShard0 + shard, PartOf(shard, round, job().epoch));
  }
  return Checkpoint(round, absl::OkStatus());
}

void CoordinatorDriver::Restart(const CoordinatorState& state) {
  coordinator_.emplace(options_, state, now_);
  for (auto& [id, session] : sessions_) session.open = false;
}

Resume CoordinatorDriver::ResumeOf(SessionId old) const {
  const EpochStart& start = sessions_.at(old).start.value();
  Resume resume;
  resume.job = start.job->id;
  resume.member = start.self;
  for (const EpochMember& each : start.epoch_members) {
    if (each.id == start.self) resume.incarnation = each.incarnation;
  }
  resume.epoch = start.job->epoch;
  return resume;
}

Reaction CoordinatorDriver::ResumeIn(SessionId session, SessionId old) {
  sessions_[session] = sessions_.at(old);
  sessions_[session].open = true;
  sessions_[session].target.reset();
  return Say(session, ResumeOf(old));
}

Reaction CoordinatorDriver::ResumeAll(const std::vector<SessionId>& members) {
  Reaction last;
  for (const SessionId member : members) {
    last = ResumeIn(kBack + member, member);
  }
  return last;
}

Reaction CoordinatorDriver::Beat(SessionId session, int64_t begun_step,
                                 int64_t round) {
  sessions_[session].heartbeat = HeartbeatOf(begun_step, round);
  if (sessions_[session].start.has_value()) {
    sessions_[session].heartbeat.epoch = sessions_[session].start->job->epoch;
  }
  return Say(session, sessions_[session].heartbeat);
}

Reaction CoordinatorDriver::Pass(absl::Duration time,
                                 const std::set<SessionId>& silent) {
  Reaction all;
  const absl::Time end = now_ + time;
  while (now_ < end) {
    now_ += kTickInterval;
    for (const auto& [id, session] : sessions_) {
      if (!session.open || !session.start.has_value() || silent.contains(id)) {
        continue;
      }
      Append(Say(id, session.heartbeat), all);
    }
    Append(Tick(), all);
  }
  return all;
}

Reaction CoordinatorDriver::Report(SessionId session,
                                   const MachineReport& report) {
  Session& reporter = sessions_.at(session);
  EXPECT_TRUE(reporter.target.has_value()) << "session " << session;
  const uint64_t target = reporter.target.value_or(0);
  reporter.target.reset();
  return Say(session, EpochReport{target, reporter.start->job->epoch, report});
}

Reaction CoordinatorDriver::Report(SessionId session, int64_t begun_step) {
  MachineReport report;
  const EpochStart& start = *sessions_.at(session).start;
  if (start.self.role == Role::kWorker) {
    report.begun_step = begun_step;
    return Report(session, report);
  }
  for (int shard = 0; shard < start.job->shards(); ++shard) {
    const ShardServers& servers = start.job->shard_servers[shard];
    const bool holds =
        servers.primary == start.self.rank || servers.backup == start.self.rank;
    if (!holds) continue;
    report.closed_rounds[shard] = std::max(kInitialRound, begun_step - 1);
  }
  return Report(session, report);
}

Reaction CoordinatorDriver::ReportRest(int64_t begun_step) {
  std::vector<SessionId> asked;
  for (const auto& [id, session] : sessions_) {
    if (session.open && session.target.has_value()) asked.push_back(id);
  }
  Reaction all;
  for (const SessionId session : asked) {
    Append(Report(session, begun_step), all);
  }
  return all;
}

}  // namespace nereus
