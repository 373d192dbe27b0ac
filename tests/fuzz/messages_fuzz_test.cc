// Feeds hostile control messages to the conversion into plain structs. All
// bytes parse as Protobuf. Each test runs for two seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/messages_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <gmock/gmock.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/base/random.h"
#include "common/base/status.h"
#include "common/messages/job_messages.h"
#include "common/messages/messages.h"
#include "common/messages/status_messages.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

std::vector<LayerSpec> SomeLayers() {
  return {VectorLayer("scale", 8), FactorLayer("fc", 64, 32, true, 4)};
}

JoinRequest SomeJoin() {
  JoinRequest request;
  request.protocol_version = 1;
  request.build = "0.1.0";
  request.job = "training";
  request.name = "host:1";
  request.data_address = "host:2";
  request.layers = SomeLayers();
  request.caller.state_arrays = 3;
  request.has_checkpoints = true;
  request.host = {"rack-3", "5b1f2a6c/4026531840"};
  request.launch_rank = 3;
  return request;
}

Activity SomeActivity() {
  Activity activity;
  activity.steps = 14;
  activity.times = {absl::Seconds(3), absl::Seconds(6), absl::Seconds(1),
                    absl::Seconds(2.5)};
  activity.bytes_sent = 1 << 20;
  activity.bytes_received = 1 << 21;
  activity.busiest = BusyLink{PeerId::Shard(1), 0.75, 0.25};
  return activity;
}

Heartbeat SomeHeartbeat() {
  Heartbeat heartbeat;
  heartbeat.begun_step = 13;
  heartbeat.pushed_step = 12;
  heartbeat.round = 12;
  heartbeat.stored_bytes = 1000;
  heartbeat.chunks = 3;
  heartbeat.stall = Stall{1, 13, "worker 1", absl::Seconds(12.5)};
  heartbeat.epoch = 5;
  heartbeat.current_backups = {0, 2};
  heartbeat.activity = SomeActivity();
  heartbeat.work = LongWork{LongWork::Kind::kRestore, 3, 40};
  return heartbeat;
}

TracePart SomeTracePart() {
  Span span;
  span.kind = SpanKind::kSend;
  span.layer = 1;
  span.chunk = 0;
  span.round = 12;
  span.peer = PeerId::Shard(1);
  span.bytes = 4096;
  span.flow = 0x123456789abcdef0;
  span.begin = absl::FromUnixNanos(1'000'000'123);
  span.end = absl::FromUnixNanos(1'000'009'123);
  Span event = span;
  event.peer.reset();
  event.bytes = event.flow = 0;
  return {9,
          {span, event},
          true,
          3,
          {{span.begin, absl::Seconds(-5), absl::Microseconds(40)}}};
}

CheckpointPart SomePart() {
  return {5, 3, 12, "shard-0", 1234, 0xdeadbeef, "the disk is full"};
}

Measured SomeMeasured() {
  return {{{absl::Milliseconds(2), absl::Milliseconds(3)},
           {absl::ZeroDuration(), absl::Microseconds(7)}},
          absl::Seconds(1.5),
          LinkSpeed{125e6, absl::Microseconds(90), absl::Microseconds(3)},
          5e9};
}

EpochReport SomeReport() {
  EpochReport report;
  report.target = 7;
  report.epoch = 5;
  report.report.begun_step = 12;
  report.report.fetching = true;
  report.report.peer_layers = {{1, 11, 2}};
  report.report.closed_rounds = {{0, 11}, {3, 12}};
  report.report.verdicts = {{11, true}, {12, false}};
  report.report.ready_to_switch = true;
  return report;
}

// Two workers, one worker that has left, two shards.
EpochStart SomeStart() {
  EpochStart start;
  start.self = PeerId::Worker(1);
  start.from_base = true;
  const JobPtr first = TestJob(2, 2, SomeLayers(), {}, Scheme::kFactor);
  start.job = EpochAfter(*first, [](Job& job) {
    job.workers = {{1, 0, 2}, {4, 20}};
    job.crew.left_workers = {0};
    job.history.first_step = 21;
    job.history.contributions_before = 40;
    job.history.finished_rounds = {{1, 19, 0, 2}};
    job.history.donor = 1;
    job.options.checkpoint_every = 5;
    job.checkpoint_round = 22;
    job.switch_round = 23;
    job.options.measure = true;
    job.options.backup = true;
    job.shard_servers = {{1, 0, false}, {1, 0, true}};
  });
  start.explanations = {{10, 15, 17, std::nullopt, "no factors"},
                        {20, 25, 27, 30, "fewer"}};
  uint64_t incarnation = 0;
  const std::vector<PeerId> members = {PeerId::Worker(0), PeerId::Worker(1),
                                       PeerId::Worker(4), PeerId::Shard(0),
                                       PeerId::Shard(1)};
  for (const PeerId id : members) {
    start.epoch_members.push_back({id, ++incarnation, "a:1", id.rank});
  }
  start.broken_links = {{PeerId::Worker(1), PeerId::Shard(0)}};
  start.lease = absl::Seconds(7.5);
  return start;
}

v1::GetStatusResponse SomeStatus() {
  JobStatus status;
  status.job = "training";
  status.id = 77;
  status.epoch = 1;
  status.state = JobState::kRunning;
  status.workers = 2;
  status.shards = 1;
  JobStatus::Member member;
  member.id = PeerId::Worker(1);
  member.name = "host:1";
  member.data_address = "host:2";
  member.since_heartbeat = absl::Seconds(1.5);
  member.host = 3;
  member.stall = Stall{1, 13, "worker 1", absl::Seconds(12.5)};
  member.stalled_layer = "fc";
  member.activity = SomeActivity();
  member.pace = Pace{SomeActivity().times, 0.5, absl::Milliseconds(30),
                     LateCause::kLink, BusyLink{PeerId::Worker(1), 0.5, 0.25}};
  member.late_total = absl::Seconds(9);
  status.members = {member};
  status.steps = {14, 2.5, absl::Seconds(1), absl::Milliseconds(380), true};
  status.plan.schemes = "1 by ring";
  PlanStatus::Layer& layer = status.plan.layers.emplace_back();
  layer.name = "fc";
  layer.route = {Scheme::kRing, WireType::kBfloat16};
  layer.explanation.reason = "the ring moves less";
  layer.parameters = 1000;
  layer.sync_time = absl::Milliseconds(3);
  status.events = {{absl::UnixEpoch(), true, "lost", LogEvent::kMemberLost}};
  status.counts.epochs = 1;
  status.counts.epochs_by_reason = {{"start", 1}};
  status.counts.workers_replaced.Add(absl::Seconds(1));
  status.checkpoint.since = absl::Seconds(60);
  status.checkpoint.round = 12;
  status.checkpoint.contributions = 26;
  status.checkpoint.bytes = 1234;
  status.checkpoint.wanted = true;
  status.checkpoint.failure = "the disk is full";
  status.shard_servers = {{1, -1, false}, {1, 0, true}};
  status.disk_waits = {
      {"saving the job's state", absl::Seconds(12), "no space left", 3}};
  return ToProto(status);
}

void ExpectRank(PeerId peer) {
  ASSERT_GE(peer.rank, 0);
  ASSERT_LT(peer.rank, kRanksMax);
}

// Checks the limits of each struct that a conversion has accepted.
void CheckConverted(const JoinRequest& request) {
  ASSERT_LE(request.layers.size(), static_cast<size_t>(kLayersMax));
}
void CheckConverted(const Resume& resume) { ExpectRank(resume.member); }
void CheckConverted(const LostPeer& lost) { ExpectRank(lost.peer); }
// The coordinator judges the numbers of these messages.
void CheckConverted(const Heartbeat&) {}
void CheckConverted(const EpochReport&) {}
void CheckConverted(const Leave&) {}
void CheckConverted(const ReadyToSwitch&) {}
void CheckConverted(const Measured&) {}
void CheckConverted(const CheckpointPart&) {}
void CheckConverted(const CheckpointDamaged&) {}
void CheckConverted(const Failure&) {}
void CheckConverted(const WantCheckpoint&) {}
void CheckConverted(const FactorRows& report) {
  ASSERT_LE(std::ssize(report.rows), kLayersMax);
}
void CheckConverted(const ReplicaChecksums&) {
}  // ReplicaCheck::OnChecksums checks it.
void CheckConverted(const GatheringId& id) {
  ASSERT_GE(id.step, kInitialRound);
  ASSERT_LE(id.step, kStepMax);
  ASSERT_GE(id.index, 0);
}
void CheckConverted(const Gather& gather) { CheckConverted(gather.id); }
void CheckConverted(const Gathered& gathered) { CheckConverted(gathered.id); }
void CheckConverted(const LobbyGather& gather) {
  ASSERT_GE(gather.number, 0);
  ASSERT_LT(gather.number, gather.count);
  ASSERT_GE(gather.index, 0);
  ASSERT_LT(gather.index, kLobbyGatheringsMax);
}
void CheckConverted(const LobbyGathered& gathered) {
  ASSERT_GE(gathered.index, 0);
  ASSERT_LT(gathered.index, kLobbyGatheringsMax);
}
void CheckConverted(const SaveLast& last) {
  ASSERT_GE(last.round, 0);
  ASSERT_GE(last.sender, 0);
}
void CheckConverted(const FusionTimed&) {}  // FusionTuning::Check checks it.
void CheckConverted(const SetFusion& set) {
  ASSERT_GE(set.bytes, 0);
  ASSERT_LE(set.bytes, kFusionBytesMax);
  ASSERT_GE(set.steps, 0);
  ASSERT_GE(set.trial, 0);
  ASSERT_GE(set.from_step, 0);
}

void CheckConverted(const ClockQuestion&) {}
void CheckConverted(const ClockAnswer&) {}
void CheckConverted(const TraceOrder& order) {
  ASSERT_LE(order.first_step, order.last_step);
}
void CheckConverted(const TraceEnd&) {}
void CheckConverted(const TracePart& part) {
  ASSERT_LE(std::ssize(part.spans), kTracePartSpansMax);
  for (const Span& span : part.spans) {
    ASSERT_LE(span.begin, span.end);
    ASSERT_GE(span.layer, -1);
    ASSERT_NE(SpanKindName(span.kind), "unknown");
    if (span.peer.has_value()) ExpectRank(*span.peer);
  }
}
void CheckConverted(const Waiting&) {}
void CheckConverted(const PrepareEpoch&) {}
void CheckConverted(const Refusal& refusal) { ASSERT_FALSE(refusal.why.ok()); }
void CheckConverted(const AskToLeave&) {}
void CheckConverted(const JobOver& over) {
  ASSERT_TRUE(IsOver(over.state));
  ASSERT_GE(over.saved_round, kInitialRound);
}
void CheckConverted(const EpochStart& start) {
  const Job& job = *start.job;
  ASSERT_GE(start.lease, kLeaseMin);
  ASSERT_LE(start.lease, kLeaseMax);
  ASSERT_TRUE(ValidateLayers(job.layers).ok());
  ASSERT_EQ(job.routes.size(), job.layers.size());
  ASSERT_EQ(start.explanations.size(), job.model().size());
  ASSERT_TRUE(job.options.optimizer.Validate().ok());
  ASSERT_GE(job.state_arrays, 0);
  ASSERT_LE(job.state_arrays, kStateArraysMax);
  ASSERT_GE(job.options.checkpoint_every, 0);
  ASSERT_GE(job.checkpoint_round, kInitialRound);
  for (size_t i = 0; i < job.layers.size(); ++i) {
    ASSERT_TRUE(SupportsScheme(job.layers[i], job.routes[i].scheme));
  }
  for (const Chunk& chunk : job.placement.chunks()) {
    ASSERT_LT(chunk.shard, job.shards());
  }
  ASSERT_LE(job.workers.back().first_step, job.history.first_step);
  // Each member has one entry, the receiver included.
  std::set<PeerId> members;
  for (int position = 0; position < job.worker_count(); ++position) {
    members.insert(PeerId::Worker(job.workers[position].rank));
    ASSERT_EQ(job.PositionOf(job.workers[position].rank), position);
    ASSERT_GE(job.workers[position].host, -1);
    ASSERT_LT(job.workers[position].host, kHostsMax);
  }
  for (const int32_t rank : job.crew.left_workers)
    members.insert(PeerId::Worker(rank));
  ASSERT_EQ(job.shard_servers.size(), static_cast<size_t>(job.shards()));
  for (const ShardServers& servers : job.shard_servers) {
    ASSERT_LT(std::max(servers.primary, servers.backup), job.shards());
    ASSERT_NE(servers.primary, servers.backup);
    members.insert(PeerId::Shard(servers.primary));
    if (servers.backup == -1) {
      ASSERT_FALSE(servers.backup_is_current);
    } else {
      ASSERT_TRUE(job.options.backup);
      members.insert(PeerId::Shard(servers.backup));
    }
  }
  ASSERT_EQ(start.epoch_members.size(), members.size());
  for (const EpochMember& each : start.epoch_members) {
    ExpectRank(each.id);
    ASSERT_GE(each.host, -1);
    ASSERT_LT(each.host, kHostsMax);
    ASSERT_TRUE(members.contains(each.id)) << PeerName(each.id);
  }
  ASSERT_TRUE(members.contains(start.self));
  for (const auto& [first, second] : start.broken_links) {
    ExpectRank(first);
    ExpectRank(second);
  }
  for (const FinishedRound& finished : job.history.finished_rounds) {
    ASSERT_TRUE(!UsesServers(job.routes.at(finished.layer).scheme));
    ASSERT_TRUE(members.contains(PeerId::Worker(finished.source)));
  }
  if (job.history.donor != -1) {
    ASSERT_TRUE(members.contains(PeerId::Worker(job.history.donor)));
  }
}
void CheckConverted(const JobStatus& status) {
  ASSERT_NE(JobStateName(status.state), "unknown");
  for (const auto& member : status.members) ExpectRank(member.id);
}
void CheckConverted(const TurnRule& rule) {
  ASSERT_TRUE(std::isfinite(rule.base));
  ASSERT_GE(rule.cost, absl::ZeroDuration());
  ASSERT_LE(rule.cost, kTurnCostMax);
}
template <typename... Messages>
void CheckConverted(const std::variant<Messages...>& message) {
  std::visit([](const auto& alternative) { CheckConverted(alternative); },
             message);
}

// Serialises maps in the order of their keys.
template <typename Message>
std::string BytesOf(const Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

// A struct must be equal after a trip through its own message. Equal contents
// have equal bytes, so the messages are compared.
template <typename Message>
void CheckOne(const Message& message, uint64_t& accepted) {
  const auto converted = FromProto(message);
  if (!converted.ok()) {
    ASSERT_EQ(converted.status().code(), absl::StatusCode::kInvalidArgument);
    ASSERT_FALSE(converted.status().message().empty());
    return;
  }
  ++accepted;
  CheckConverted(*converted);
  const Message first = ToProto(*converted);
  const auto again = FromProto(first);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(BytesOf(ToProto(*again)), BytesOf(first));
}

template <typename Message>
void Fuzz(const Message& sound) {
  // The Protobuf parser refuses text that is not UTF-8, and would log each
  // case.
  const google::protobuf::LogSilencer silencer;
  const std::string valid = sound.SerializeAsString();
  FuzzBudget budget;
  uint64_t accepted = 0;
  CheckOne(sound, accepted);
  ASSERT_EQ(accepted, 1u) << "the unspoilt message is refused";
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 50; ++i) {
      std::string bytes =
          random.Chance(0.05) ? RandomBytes(random, random.Below(64)) : valid;
      Mutate(random, bytes);
      Message message;
      if (!message.ParseFromString(bytes)) continue;
      CheckOne(message, accepted);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

void FuzzMember(const MemberMessage& message) { Fuzz(ToProto(message)); }
void FuzzCoordinator(const CoordinatorMessage& message) {
  Fuzz(ToProto(message));
}

TEST(MessagesFuzzTest, HostileJoinRequestIsRefusedOrSound) {
  FuzzMember(SomeJoin());
}
TEST(MessagesFuzzTest, HostileLobbyGatherIsRefusedOrSound) {
  FuzzMember(LobbyGather{15, "0.1.0", "training", 1, 3, 2, "value", 7});
}
TEST(MessagesFuzzTest, HostileLobbyGatheredIsRefusedOrSound) {
  FuzzCoordinator(LobbyGathered{2, {"a", "", "b"}, "too long"});
}
TEST(MessagesFuzzTest, HostileResumeIsRefusedOrSound) {
  FuzzMember(Resume{77, PeerId::Worker(4), 9, 5});
}
TEST(MessagesFuzzTest, HostileHeartbeatIsRefusedOrSound) {
  FuzzMember(SomeHeartbeat());
}
TEST(MessagesFuzzTest, HostileFailureIsRefusedOrSound) {
  FuzzMember(Failure{"NaN in layer fc"});
}
TEST(MessagesFuzzTest, HostileCheckpointPartIsRefusedOrSound) {
  FuzzMember(SomePart());
}
TEST(MessagesFuzzTest, HostileCheckpointDamagedIsRefusedOrSound) {
  FuzzMember(CheckpointDamaged{5, 12, "shard-0 is torn"});
}
TEST(MessagesFuzzTest, HostileLostPeerIsRefusedOrSound) {
  FuzzMember(LostPeer{5, PeerId::Worker(0), "reset"});
}
TEST(MessagesFuzzTest, HostileEpochReportIsRefusedOrSound) {
  FuzzMember(SomeReport());
}
TEST(MessagesFuzzTest, HostileReadyToSwitchIsRefusedOrSound) {
  FuzzMember(ReadyToSwitch{5});
}
TEST(MessagesFuzzTest, HostileMeasuredIsRefusedOrSound) {
  FuzzMember(SomeMeasured());
}
TEST(MessagesFuzzTest, HostileLeaveIsRefusedOrSound) { FuzzMember(Leave{12}); }
TEST(MessagesFuzzTest, HostileTraceIsRefusedOrSound) {
  const absl::Time time = absl::FromUnixNanos(1'000'000'123);
  FuzzMember(ClockQuestion{9, time});
  FuzzMember(SomeTracePart());
  FuzzCoordinator(ClockAnswer{9, time, time});
  FuzzCoordinator(TraceOrder{9, 100, 109, 1000});
  FuzzCoordinator(TraceEnd{9, true});
}

TEST(MessagesFuzzTest, HostileWaitingIsRefusedOrSound) {
  FuzzCoordinator(Waiting{"1 more worker (2 needed)"});
}
TEST(MessagesFuzzTest, HostileRefusalIsRefusedOrSound) {
  FuzzCoordinator(Refusal{NotFoundError("another job")});
}
TEST(MessagesFuzzTest, HostilePrepareEpochIsRefusedOrSound) {
  FuzzCoordinator(PrepareEpoch{7});
}
TEST(MessagesFuzzTest, HostileEpochStartIsRefusedOrSound) {
  FuzzCoordinator(SomeStart());
}
TEST(MessagesFuzzTest, HostileJobOverIsRefusedOrSound) {
  FuzzCoordinator(JobOver{JobState::kFailed, "worker 1 is gone"});
}
TEST(MessagesFuzzTest, HostileStatusIsRefusedOrSound) { Fuzz(SomeStatus()); }

// Sets one number of an epoch's start to `value`.
void SetNumber(Random& random, uint64_t value, v1::EpochStart& start) {
  v1::Job& job = *start.mutable_job();
  v1::LayerSpec& layer = *job.mutable_layers(random.Below(2));
  v1::Job::EpochWorker& worker = *job.mutable_workers(random.Below(2));
  v1::Job::FinishedRound& finished = *job.mutable_finished_rounds(0);
  v1::EpochStart::EpochMember& each =
      *start.mutable_epoch_members(random.Below(5));
  const auto number = static_cast<int64_t>(value);
  const auto word = static_cast<int32_t>(value);
  const std::vector<std::function<void()>> settings = {
      [&] { start.mutable_self()->set_rank(word); },
      [&] { each.mutable_member()->set_rank(word); },
      [&] {
        each.mutable_member()->set_role(static_cast<v1::Member::Role>(word));
      },
      [&] { start.mutable_broken_links(0)->mutable_first()->set_rank(word); },
      [&] { worker.set_rank(word); },
      [&] { worker.set_first_step(number); },
      [&] { worker.set_host(word); },
      [&] { each.set_host(word); },
      [&] { job.set_left_workers(0, word); },
      [&] { job.set_base_round(number); },
      [&] { job.set_first_step(number); },
      [&] { job.set_contributions_before(number); },
      [&] { job.set_donor(word); },
      [&] { job.set_state_arrays(word); },
      [&] {
        v1::JobOptions& options = *job.mutable_options();
        options.mutable_settings(random.Below(options.settings_size()))
            ->set_value(std::to_string(number));
      },
      [&] { job.mutable_options()->set_fusion_bytes(number); },
      [&] { job.set_checkpoint_round(number); },
      [&] { finished.set_layer(word); },
      [&] { finished.set_round(number); },
      [&] { finished.set_source(word); },
      [&] { finished.set_contributors(word); },
      [&] { job.set_shards(word); },
      [&] { layer.set_m(number); },
      [&] { layer.set_n(number); },
      // Thousands of chunks are enough for a test.
      [&] {
        layer.set_parameters(std::min<int64_t>(number, int64_t{1} << 33));
      },
      [&] { layer.set_rows(number); },
      [&] { layer.set_kind(static_cast<v1::LayerSpec::Kind>(word)); },
      [&] {
        job.mutable_routes(random.Below(2))
            ->set_scheme(static_cast<v1::Route::Scheme>(word));
      },
  };
  settings[random.Below(settings.size())]();
}

// Converts well-formed messages with extreme numbers.
TEST(MessagesFuzzTest, ExtremeNumbersOfEpochsAreRefusedOrSound) {
  const v1::CoordinatorMessage sound = ToProto(CoordinatorMessage(SomeStart()));
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    uint64_t accepted = 0;
    for (int i = 0; i < 20; ++i) {
      v1::CoordinatorMessage message = sound;
      SetNumber(random, EdgeNumber(random), *message.mutable_epoch_start());
      CheckOne(message, accepted);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

// Exceeds each limit of a count by one.
TEST(MessagesFuzzTest, TooManyLayersAreRefused) {
  v1::MemberMessage join = ToProto(MemberMessage(SomeJoin()));
  auto& layers = *join.mutable_join()->mutable_layers();
  layers.Clear();
  for (int64_t i = 0; i < kLayersMax; ++i) {
    layers.Add()->set_kind(v1::LayerSpec::KIND_VECTOR);
  }
  EXPECT_TRUE(FromProto(join).ok());
  layers.Add()->set_kind(v1::LayerSpec::KIND_VECTOR);
  EXPECT_EQ(FromProto(join).status().code(),
            absl::StatusCode::kInvalidArgument);

  v1::CoordinatorMessage start = ToProto(CoordinatorMessage(SomeStart()));
  *start.mutable_epoch_start()->mutable_job()->mutable_layers() = layers;
  EXPECT_EQ(FromProto(start).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MessagesFuzzTest, EmptyMessagesAreRefused) {
  EXPECT_FALSE(FromProto(v1::MemberMessage()).ok());
  EXPECT_FALSE(FromProto(v1::CoordinatorMessage()).ok());
  EXPECT_FALSE(FromProto(v1::Member()).ok());
  EXPECT_FALSE(FromProto(v1::GetStatusResponse()).ok());

  v1::MemberMessage from_member;
  from_member.mutable_join();
  EXPECT_FALSE(FromProto(from_member).ok());
  from_member.mutable_resume();
  EXPECT_FALSE(FromProto(from_member).ok());
  from_member.mutable_lost_peer();
  EXPECT_FALSE(FromProto(from_member).ok());

  v1::CoordinatorMessage from_coordinator;
  from_coordinator.mutable_epoch_start();
  EXPECT_FALSE(FromProto(from_coordinator).ok());
  from_coordinator.mutable_refusal();
  EXPECT_FALSE(FromProto(from_coordinator).ok());
  from_coordinator.mutable_job_over();
  EXPECT_FALSE(FromProto(from_coordinator).ok());
}

TEST(MessagesTest, SeatsAndMembersMatch) {
  const struct {
    const char* text;
    std::function<void(EpochStart&)> change;
  } kCases[] = {
      {"has 4 epoch_members for its 5 members: each member must have",
       [](EpochStart& start) { start.epoch_members.pop_back(); }},
      {"has 6 epoch_members",
       [](EpochStart& start) {
         start.epoch_members.push_back(start.epoch_members[0]);
       }},
      {"has 5 epoch_members",
       [](EpochStart& start) {
         start.epoch_members[1].id = start.epoch_members[0].id;
       }},
      {"has 5 epoch_members",
       [](EpochStart& start) {
         start.epoch_members[0].id = PeerId::Worker(2);
       }},
      {"the epoch that worker 2 must enter has no entry for it",
       [](EpochStart& start) { start.self = PeerId::Worker(2); }},
      {"an epoch has a lease of 0, must be from 1ms",
       [](EpochStart& start) { start.lease = absl::ZeroDuration(); }},
      {"to 277h46m40s",
       [](EpochStart& start) { start.lease = absl::InfiniteDuration(); }},
  };
  for (const auto& c : kCases) {
    EpochStart start = SomeStart();
    c.change(start);
    const auto message = FromProto(ToProto(CoordinatorMessage(start)));
    ASSERT_EQ(message.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(message.status().message()),
                testing::HasSubstr(c.text));
  }
}

TEST(MessagesTest, PlanInputsSurviveTheWire) {
  const auto report = FromProto(ToProto(MemberMessage(SomeReport())));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(std::get<EpochReport>(*report).report.ready_to_switch);

  const auto measured = FromProto(ToProto(MemberMessage(SomeMeasured())));
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(std::get<Measured>(*measured), SomeMeasured());
}

TEST(MessagesTest, NewFieldsSurviveTheWire) {
  const auto join = FromProto(ToProto(MemberMessage(SomeJoin())));
  ASSERT_TRUE(join.ok()) << join.status();
  EXPECT_EQ(std::get<JoinRequest>(*join).caller.state_arrays, 3);
  EXPECT_TRUE(std::get<JoinRequest>(*join).has_checkpoints);

  const auto beat = FromProto(ToProto(MemberMessage(SomeHeartbeat())));
  ASSERT_TRUE(beat.ok()) << beat.status();
  const auto& stall = std::get<Heartbeat>(*beat).stall;
  ASSERT_TRUE(stall.has_value());
  EXPECT_EQ(stall->layer, 1);
  EXPECT_EQ(stall->round, 13);
  EXPECT_EQ(stall->missing, "worker 1");
  EXPECT_EQ(stall->waited, absl::Seconds(12.5));
  EXPECT_EQ(std::get<Heartbeat>(*beat).epoch, 5u);
  EXPECT_EQ(std::get<Heartbeat>(*beat).current_backups,
            std::vector<int32_t>({0, 2}));
  EXPECT_EQ(std::get<Heartbeat>(*beat).work, SomeHeartbeat().work);
  const auto calm = FromProto(ToProto(MemberMessage(Heartbeat())));
  EXPECT_FALSE(std::get<Heartbeat>(*calm).stall.has_value());

  const auto part = FromProto(ToProto(MemberMessage(SomePart())));
  ASSERT_TRUE(part.ok()) << part.status();
  const auto& said = std::get<CheckpointPart>(*part);
  EXPECT_EQ(said.epoch, 5u);
  EXPECT_EQ(said.shard, 3);
  EXPECT_EQ(said.round, 12);
  EXPECT_EQ(said.file, "shard-0");
  EXPECT_EQ(said.bytes, 1234);
  EXPECT_EQ(said.crc, 0xdeadbeef);
  EXPECT_EQ(said.error, "the disk is full");

  const auto start = FromProto(ToProto(CoordinatorMessage(SomeStart())));
  ASSERT_TRUE(start.ok()) << start.status();
  const Job& job = *std::get<EpochStart>(*start).job;
  EXPECT_EQ(job.options.checkpoint_every, 5);
  EXPECT_EQ(job.checkpoint_round, 22);
  EXPECT_EQ(job.switch_round, 23);
  EXPECT_TRUE(job.options.measure);
  EXPECT_TRUE(job.options.backup);
  EXPECT_EQ(job.shard_servers, SomeStart().job->shard_servers);

  JobOptions sparse;
  sparse.sparsity = {/*share=*/0.51234567890123, /*block_elements=*/300,
                     /*dense_steps=*/7};
  sparse.chunk_bytes = 300 << 10;
  EpochStart sparse_start = SomeStart();
  sparse_start.job = TestJob(2, 2, {VectorLayer("a", 5000)}, sparse);
  sparse_start.explanations = {{10, 15, 17, std::nullopt, "no factors"}};
  std::erase_if(sparse_start.epoch_members,
                [](const auto& each) { return each.id == PeerId::Worker(4); });
  const auto again = FromProto(ToProto(CoordinatorMessage(sparse_start)));
  ASSERT_TRUE(again.ok()) << again.status();
  const Job& same = *std::get<EpochStart>(*again).job;
  EXPECT_EQ(same.options, sparse);
  EXPECT_EQ(same.layers, sparse_start.job->layers);
  EXPECT_EQ(same.pool.layer, 1);

  const auto status = FromProto(SomeStatus());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->members[0].stall->waited, absl::Seconds(12.5));
  EXPECT_EQ(status->members[0].stalled_layer, "fc");
  EXPECT_EQ(status->checkpoint.round, 12);
  EXPECT_EQ(status->checkpoint.contributions, 26);
  EXPECT_EQ(status->checkpoint.bytes, 1234);
  EXPECT_TRUE(status->checkpoint.wanted);
  EXPECT_EQ(status->shard_servers,
            (std::vector<ShardServers>{{1, -1, false}, {1, 0, true}}));
  EXPECT_EQ(status->checkpoint.failure, "the disk is full");
}

TEST(MessagesTest, RefusalsKeepEachCodeButOk) {
  for (int code = 0; code <= 16; ++code) {
    v1::CoordinatorMessage proto;
    proto.mutable_refusal()->set_code(code);
    proto.mutable_refusal()->set_text("why");
    const auto message = FromProto(proto);
    ASSERT_EQ(message.ok(), code != 0) << code;
    if (code == 0) continue;
    EXPECT_EQ(static_cast<int>(std::get<Refusal>(*message).why.code()), code);
  }
  for (const int code : {-1, 17, 1000}) {
    v1::CoordinatorMessage proto;
    proto.mutable_refusal()->set_code(code);
    EXPECT_FALSE(FromProto(proto).ok()) << code;
  }
}

TEST(MessagesTest, NegativeCountsAreRefused) {
  JobStatus status;
  status.state = JobState::kRunning;
  v1::GetStatusResponse message = ToProto(status);
  message.set_workers(-5);
  EXPECT_FALSE(FromProto(message).ok());
}

TEST(MessagesTest, DamageOfACheckpointSurvivesTheWire) {
  const auto damaged = FromProto(
      ToProto(MemberMessage(CheckpointDamaged{5, 12, "shard-0 is torn"})));
  ASSERT_TRUE(damaged.ok()) << damaged.status();
  EXPECT_EQ(std::get<CheckpointDamaged>(*damaged).epoch, 5u);
  EXPECT_EQ(std::get<CheckpointDamaged>(*damaged).round, 12);
  EXPECT_EQ(std::get<CheckpointDamaged>(*damaged).reason, "shard-0 is torn");
}

}  // namespace
}  // namespace nereus
