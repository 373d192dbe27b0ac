// Member, the part of a process that follows the coordinator: joining, epochs,
// reports, and what it sends again in a new session. A fake machine records its
// calls; no test uses threads or sockets.

#include "common/protocol/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Records the calls of a process's machines, in order.
struct Log {
  std::vector<std::string> entries;
  int machines = 0;
  bool ready_to_switch = false;  // The machines' answer in their reports.
};

// A machine that records its calls.
class FakeMachine final : public Machine {
 public:
  FakeMachine(Log* log, JobPtr job)
      : log_(log), number_(++log->machines), job_(std::move(job)) {
    Note("made", job_->epoch);
  }
  ~FakeMachine() override { Note("gone", job_->epoch); }

  absl::StatusOr<Landing> OnHeader(PeerId,
                                   const FrameHeader& header) const override {
    if (header.layer != 0) return InvalidArgumentError("no such layer");
    return Landing::Scratch();
  }
  void OnFrame(PeerId, const Frame& frame, Outbox& out) override {
    Note("frame", frame.header.round);
    out.Add(LayerDone{0, frame.header.round});
  }
  void Freeze() override { Note("freeze", job_->epoch); }
  MachineReport Report() const override {
    MachineReport report;
    report.begun_step = 40 + number_;
    report.ready_to_switch = log_->ready_to_switch;
    return report;
  }
  void SaveLast(int64_t round, int32_t sender, Outbox&) override {
    Note("save last by " + std::to_string(sender), round);
  }
  std::optional<ReplicaChecksums> OnChecksum(const ChecksumValues& checked,
                                             uint32_t crc) override {
    // Layer 0 stands for the last missing layer.
    if (checked.layer != 0) return std::nullopt;
    return ReplicaChecksums{
        /*epoch=*/0, checked.round, {crc}, checked.sampled.has_value()};
  }
  void OnEpoch(JobPtr job, Outbox& out) override {
    job_ = std::move(job);
    Note("epoch", job_->epoch);
    out.Add(LayerDone{0, 99});
  }

 private:
  void Note(const std::string& what, uint64_t number) {
    log_->entries.push_back("machine " + std::to_string(number_) + " " + what +
                            " " + std::to_string(number));
  }

  Log* const log_;
  const int number_;
  JobPtr job_;
};

class MemberTest : public testing::Test {
 protected:
  MemberTest()
      : job_(TestJob(2, 1, {VectorLayer("scale", 1)})), member_(NewMember()) {}

  Member NewMember(const JoinRequest& request = Request()) {
    return Member(request, [this](const EpochStart& start, Outbox& out) {
      out.Add(LayerDone{0, kInitialRound});
      return std::make_unique<FakeMachine>(&log_, start.job);
    });
  }

  static JoinRequest Request() {
    JoinRequest request;
    request.incarnation = 7;
    request.name = "me";
    return request;
  }

  EpochStart StartOf(uint64_t epoch) const {
    EpochStart start;
    start.self = PeerId::Worker(1);
    start.job = EpochAfter(*job_, [&](Job& job) { job.epoch = epoch; });
    return start;
  }
  Effects Session() {
    Outbox out;
    member_.OnSession(out);
    return Carry(out);
  }
  Effects Hear(const CoordinatorMessage& message) {
    Outbox out;
    member_.OnMessage(message, out);
    return Carry(out);
  }
  Effects Enter(uint64_t epoch) { return Hear(StartOf(epoch)); }
  Effects Lose(PeerId peer) {
    Outbox out;
    member_.OnLostPeer(peer, "reset", out);
    return Carry(out);
  }
  // Reports the checksum of a layer as of `round`.
  Effects Sum(int layer, int64_t round, uint32_t crc) {
    Outbox out;
    member_.OnChecksum(ChecksumValues{layer, round, Buffer()}, crc, out);
    return Carry(out);
  }
  Frame FrameOf(uint64_t epoch) const {
    FrameHeader header = MakeHeader(*job_, PeerId::Shard(0), FrameKind::kResult,
                                    0, 0, /*round=*/3);
    header.epoch = epoch;
    return {header, Buffer()};
  }
  absl::StatusOr<Landing> Announce(const FrameHeader& header) const {
    return member_.OnHeader(PeerId::Shard(0), header);
  }
  Landing::Kind LandingOf(uint64_t epoch) const {
    const auto landing = Announce(FrameOf(epoch).header);
    EXPECT_TRUE(landing.ok()) << landing.status();
    return landing.value_or(Landing()).kind;
  }

  const JobPtr job_;
  Log log_;
  Member member_;
};

template <typename T>
const T& Only(const Effects& effects) {
  EXPECT_EQ(effects.messages.size(), 1u);
  return std::get<T>(effects.messages.at(0));
}

TEST_F(MemberTest, NonFiniteValueEndsTheJobAndNamesTheSourceOfTheValue) {
  const struct {
    ValueCheck check;
    BadValue value;
    const char* reason;
  } kCases[] = {
      {{0, 7, 0, 5},
       {1, HUGE_VALF},
       "worker 0: layer scale, step 7: the gradient has inf at element 6 of 1"},
      // The member's own value.
      {{0, 7, 1, 0},
       {0, HUGE_VALF},
       "layer scale, step 7: the gradient has inf at element 0 of 1"},
      {{0, 3, 0, 40, Checked::kUpdate},
       {2, HUGE_VALF},
       "layer scale, step 3: the update by the mean gradient of all workers "
       "has inf at element 42 of 1"},
  };
  for (const auto& c : kCases) {
    Member member = NewMember();
    Outbox out;
    member.OnMessage(StartOf(1), out);
    Carry(out);
    member.OnBadValue(c.check, c.value, out);
    // Only the first one is told.
    member.OnBadValue({0, 8, 0, 0}, {0, NAN}, out);
    EXPECT_EQ(Only<Failure>(Carry(out)).reason, c.reason);
  }
}

TEST_F(MemberTest, MemberJoinsInEachSessionUntilItIsAdmitted) {
  for (int session = 0; session < 2; ++session) {
    EXPECT_EQ(Only<JoinRequest>(Session()).name, "me");
    EXPECT_THAT(Hear(Waiting{"for others"}).messages, IsEmpty());
  }
  EXPECT_EQ(member_.start(), nullptr);
  EXPECT_FALSE(member_.over());
  EXPECT_THAT(log_.entries, IsEmpty());
}

TEST_F(MemberTest, MachineIsMadeForTheFirstEpoch) {
  Session();
  const Effects entered = Enter(3);
  EXPECT_THAT(log_.entries, ElementsAre("machine 1 made 3"));
  ASSERT_EQ(entered.followed.size(), 1u);
  EXPECT_EQ(entered.followed[0]->job->epoch, 3u);
  EXPECT_EQ(entered.followed[0].get(), member_.start());
  // This action is from MakeMachine of the fixture.
  ASSERT_EQ(entered.done.size(), 1u);
  EXPECT_EQ(entered.done[0].round, kInitialRound);
  EXPECT_FALSE(member_.frozen());
}

// The frames of the machine go to the new members. So the driver must connect
// to these members first.
TEST_F(MemberTest, DriverFollowsAnEpochBeforeTheMachineSends) {
  for (const uint64_t epoch : {3u, 4u}) {
    Outbox out;
    member_.OnMessage(StartOf(epoch), out);
    ASSERT_EQ(out.actions().size(), 2u);
    EXPECT_TRUE(std::holds_alternative<FollowEpoch>(out.actions()[0]));
    EXPECT_TRUE(std::holds_alternative<LayerDone>(out.actions()[1]));
  }
}

TEST_F(MemberTest, RepeatedEpochIsIgnored) {
  Enter(3);
  Enter(4);
  for (const uint64_t epoch : {4u, 3u}) {
    const Effects again = Enter(epoch);
    EXPECT_THAT(again.followed, IsEmpty());
    EXPECT_THAT(again.done, IsEmpty());
    EXPECT_EQ(member_.start()->job->epoch, 4u);
  }
}

// The machine has the sizes of the first model. A coordinator with a fault must
// not make the process abort.
TEST_F(MemberTest, EpochWithAnotherModelEndsTheMember) {
  Enter(1);
  for (const bool from_base : {false, true}) {
    SCOPED_TRACE(from_base);
    Member member = NewMember();
    Outbox out;
    member.OnMessage(StartOf(1), out);
    Carry(out);
    EpochStart other = StartOf(2);
    other.from_base = from_base;
    other.job = EpochAfter(*TestJob(2, 1, {VectorLayer("scale", 2)}),
                           [](Job& job) { job.epoch = 2; });
    member.OnMessage(other, out);
    const Effects effects = Carry(out);
    ASSERT_THAT(effects.ended, SizeIs(1));
    EXPECT_EQ(effects.ended[0].code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(effects.ended[0].message()),
                AllOf(HasSubstr("another model"), HasSubstr("scale")));
  }
}

// A worker knows its model before the first epoch.
TEST_F(MemberTest, FirstEpochHasTheModelOfTheRequest) {
  JoinRequest request = Request();
  request.layers = {VectorLayer("scale", 2)};
  Member member = NewMember(request);
  Outbox out;
  member.OnMessage(StartOf(1), out);
  const Effects effects = Carry(out);
  ASSERT_THAT(effects.ended, SizeIs(1));
  EXPECT_EQ(effects.ended[0].code(), absl::StatusCode::kInternal);
  EXPECT_EQ(log_.machines, 0);
}

TEST_F(MemberTest, FreshStartGetsANewMachine) {
  Enter(3);
  EpochStart start = StartOf(4);
  start.from_base = true;
  Hear(start);
  EXPECT_THAT(log_.entries, ElementsAre("machine 1 made 3", "machine 2 made 4",
                                        "machine 1 gone 3"));
}

TEST_F(MemberTest, PrepareEpochFreezesTheMachineAndReports) {
  Enter(3);
  EpochReport report = Only<EpochReport>(Hear(PrepareEpoch{5}));
  EXPECT_EQ(report.target, 5u);
  EXPECT_EQ(report.epoch, 3u);
  EXPECT_EQ(report.report.begun_step, 41);
  EXPECT_TRUE(member_.frozen());
  // If a member dies, the coordinator asks again with another number.
  report = Only<EpochReport>(Hear(PrepareEpoch{6}));
  EXPECT_EQ(report.target, 6u);
  EXPECT_TRUE(member_.frozen());
  Enter(6);
  EXPECT_FALSE(member_.frozen());
  EXPECT_THAT(log_.entries,
              ElementsAre("machine 1 made 3", "machine 1 freeze 3",
                          "machine 1 freeze 3", "machine 1 epoch 6"));
}

TEST_F(MemberTest, UnadmittedMemberReportsNothing) {
  Session();
  EXPECT_THAT(Hear(PrepareEpoch{2}).messages, IsEmpty());
  EXPECT_FALSE(member_.frozen());
}

TEST_F(MemberTest, AdmittedMemberResumesInANewSession) {
  Session();
  Enter(3);
  Enter(4);
  const Resume resume = Only<Resume>(Session());
  EXPECT_EQ(resume.job, job_->id);
  EXPECT_EQ(resume.member, PeerId::Worker(1));
  EXPECT_EQ(resume.incarnation, 7u);
  EXPECT_EQ(resume.epoch, 4u);
}

TEST_F(MemberTest, FramesWaitForTheFirstEpoch) {
  EXPECT_EQ(LandingOf(3), Landing::Kind::kWait);
}

TEST_F(MemberTest, OnlyFramesOfTheEpochReachTheMachine) {
  Enter(4);
  EXPECT_EQ(LandingOf(3), Landing::Kind::kDiscard);
  EXPECT_EQ(LandingOf(4), Landing::Kind::kScratch);
  EXPECT_EQ(LandingOf(5), Landing::Kind::kWait);
  Enter(5);
  EXPECT_EQ(LandingOf(4), Landing::Kind::kDiscard);
  EXPECT_EQ(LandingOf(5), Landing::Kind::kScratch);

  // A frame of an older epoch is discarded even if the machine would refuse it:
  // it may have been right in its epoch.
  FrameHeader header = FrameOf(4).header;
  header.layer = 9;
  EXPECT_EQ(Announce(header)->kind, Landing::Kind::kDiscard);
  header.epoch = 5;
  EXPECT_EQ(Announce(header).status().message(), "no such layer");
}

TEST_F(MemberTest, FramesOfOtherJobsAreRefused) {
  Enter(4);
  for (const uint64_t epoch : {3u, 4u, 5u}) {
    FrameHeader header = FrameOf(epoch).header;
    header.job = 1;
    EXPECT_THAT(Announce(header).status(),
                IsInvalidArgument("job is 1, expected 77"));
  }
}

TEST_F(MemberTest, LostPeerIsReportedWithTheEpoch) {
  // There is no epoch yet.
  EXPECT_THAT(Lose(PeerId::Shard(0)).messages, IsEmpty());
  Enter(3);
  const LostPeer lost = Only<LostPeer>(Lose(PeerId::Shard(0)));
  EXPECT_EQ(lost.epoch, 3u);
  EXPECT_EQ(lost.peer, PeerId::Shard(0));
  EXPECT_EQ(lost.reason, "reset");
}

TEST_F(MemberTest, LostPeerSaysWhetherItWasEverReached) {
  const PeerId mate = PeerId::Worker(0);
  const PeerId shard = PeerId::Shard(0);
  EpochStart start = StartOf(3);
  start.epoch_members = {{mate, 1, "a"}, {shard, 2, "b"}};
  Hear(start);
  EXPECT_FALSE(Only<LostPeer>(Lose(mate)).reached);
  member_.OnConnected(mate);
  member_.OnConnected(shard);
  EXPECT_TRUE(Only<LostPeer>(Lose(mate)).reached);
  // The next epoch has another server in the place of the first.
  EpochStart next = StartOf(4);
  next.epoch_members = {{mate, 1, "a"}, {shard, 3, "c"}};
  Hear(next);
  EXPECT_TRUE(Only<LostPeer>(Lose(mate)).reached);
  EXPECT_FALSE(Only<LostPeer>(Lose(shard)).reached);
}

// The last messages of a session may be lost with it.
TEST_F(MemberTest, LostPeersAreRepeatedInANewSession) {
  Enter(3);
  Lose(PeerId::Shard(0));
  Lose(PeerId::Worker(0));
  const Effects resumed = Session();
  ASSERT_THAT(resumed.messages, SizeIs(3));
  EXPECT_EQ(std::get<LostPeer>(resumed.messages[1]).peer, PeerId::Shard(0));
  EXPECT_EQ(std::get<LostPeer>(resumed.messages[2]).peer, PeerId::Worker(0));
  Enter(4);
  EXPECT_THAT(Session().messages, SizeIs(1));
}

TEST_F(MemberTest, CheckpointPartIsRepeatedUntilAFreshStart) {
  Enter(1);
  CheckpointPart part;
  part.epoch = 1;
  for (part.round = 5; part.round < 7; ++part.round) {
    Outbox out;
    member_.OnPart(part, out);
    EXPECT_EQ(Only<CheckpointPart>(Carry(out)).round, part.round);
  }
  const Effects resumed = Session();
  // Only the last checkpoint is repeated.
  ASSERT_EQ(resumed.messages.size(), 2u);
  EXPECT_EQ(std::get<CheckpointPart>(resumed.messages[1]).round, 6);
  EpochStart start = StartOf(2);
  start.from_base = true;
  Hear(start);
  EXPECT_EQ(Session().messages.size(), 1u);
}

// The message comes before the report for the next epoch, which would count the
// server as one with values.
TEST_F(MemberTest, DamageIsToldAgainUntilTheNextEpoch) {
  Enter(3);
  Outbox out;
  member_.OnDamaged(40, "shard-0 is torn", out);
  const CheckpointDamaged told = Only<CheckpointDamaged>(Carry(out));
  EXPECT_EQ(told.epoch, 3u);
  EXPECT_EQ(told.round, 40);
  EXPECT_EQ(told.reason, "shard-0 is torn");
  const Effects resumed = Session();
  ASSERT_EQ(resumed.messages.size(), 2u);
  EXPECT_EQ(std::get<CheckpointDamaged>(resumed.messages[1]).round, 40);
  Enter(4);
  EXPECT_EQ(Session().messages.size(), 1u);
}

TEST_F(MemberTest, CompleteChecksumsAreReportedWithTheEpoch) {
  Enter(3);
  EXPECT_THAT(Sum(1, 7, 0xa).messages, IsEmpty());
  const ReplicaChecksums sums = Only<ReplicaChecksums>(Sum(0, 7, 0xb));
  EXPECT_EQ(sums.epoch, 3u);
  EXPECT_EQ(sums.round, 7);
  EXPECT_THAT(sums.layers, ElementsAre(0xb));
}

TEST_F(MemberTest, LastChecksumsAreRepeatedUntilTheNextEpoch) {
  Enter(3);
  EXPECT_THAT(Session().messages, SizeIs(1));
  Sum(0, 7, 0xa);
  Sum(0, 8, 0xb);
  const Effects resumed = Session();
  ASSERT_THAT(resumed.messages, SizeIs(2));
  EXPECT_EQ(std::get<ReplicaChecksums>(resumed.messages[1]).round, 8);
  Enter(4);
  EXPECT_THAT(Session().messages, SizeIs(1));
}

// The next sample comes a second later.
TEST_F(MemberTest, SamplesAreReportedAndNotRepeated) {
  Enter(3);
  ChecksumValues checked = {0, 7, Buffer()};
  checked.sampled = SampledElementsOf(0, 7, 1);
  Outbox out;
  member_.OnChecksum(checked, 0xb, out);
  const ReplicaChecksums sample = Only<ReplicaChecksums>(Carry(out));
  EXPECT_TRUE(sample.is_sample);
  EXPECT_EQ(sample.epoch, 3u);
  EXPECT_THAT(Session().messages, SizeIs(1));
}

// The last worker's leave may finish the job. The coordinator would not compare
// checksums that come after the leave.
TEST_F(MemberTest, ChecksumsAreRepeatedBeforeTheLeave) {
  Enter(3);
  Sum(0, 7, 0xa);
  Outbox out;
  member_.OnLeave(7, /*early=*/false, out);
  const Effects resumed = Session();
  ASSERT_THAT(resumed.messages, SizeIs(3));
  EXPECT_TRUE(std::holds_alternative<ReplicaChecksums>(resumed.messages[1]));
  EXPECT_TRUE(std::holds_alternative<Leave>(resumed.messages[2]));
}

// A broken session may have lost the request, while another epoch began for
// another reason.
TEST_F(MemberTest, WantedCheckpointIsRepeatedUntilAnEpochHasARoundForIt) {
  Enter(3);
  Outbox out;
  member_.OnWantCheckpoint(12, out);
  EXPECT_EQ(Only<WantCheckpoint>(Carry(out)).begun_step, 12);
  Enter(4);
  const Effects resumed = Session();
  ASSERT_THAT(resumed.messages, SizeIs(2));
  EXPECT_EQ(std::get<WantCheckpoint>(resumed.messages[1]).begun_step, 12);
  EpochStart saving = StartOf(5);
  saving.job = EpochAfter(*saving.job, [](Job& job) {
    job.history.first_step = 14;
    job.checkpoint_round = 14;
  });
  Hear(saving);
  EXPECT_THAT(Session().messages, SizeIs(1));
}

// The coordinator makes the plan for the step after the switch round from the
// reports that it has when all members are ready to switch.
TEST_F(MemberTest, RowsAreRepeatedInANewSessionBeforeReadyToSwitch) {
  Enter(3);
  Outbox out;
  member_.OnFactorRows({{0, 8}}, out);
  EXPECT_THAT(Only<FactorRows>(Carry(out)).rows, ElementsAre(0, 8));
  log_.ready_to_switch = true;
  const Effects resumed = Session();
  ASSERT_THAT(resumed.messages, SizeIs(3));
  EXPECT_THAT(std::get<FactorRows>(resumed.messages[1]).rows,
              ElementsAre(0, 8));
  EXPECT_TRUE(std::holds_alternative<ReadyToSwitch>(resumed.messages[2]));
}

TEST_F(MemberTest, ReportsOfRowsAddUpAndNewsIsSentOnce) {
  Enter(3);
  Outbox out;
  member_.OnFactorRows({{4, 8}}, out);
  EXPECT_THAT(Only<FactorRows>(Carry(out)).rows, ElementsAre(4, 8));
  member_.OnFactorRows({{6, 0}}, out);
  EXPECT_THAT(Only<FactorRows>(Carry(out)).rows, ElementsAre(6, 8));
  member_.OnFactorRows({{5, kFactorsLost}}, out);
  EXPECT_THAT(Only<FactorRows>(Carry(out)).rows, ElementsAre(6, kFactorsLost));
  member_.OnFactorRows({{6, 9}}, out);
  EXPECT_THAT(Carry(out).messages, IsEmpty());
  // A job that goes back goes on with the reports.
  EpochStart back = StartOf(4);
  back.from_base = true;
  Hear(back);
  EXPECT_THAT(std::get<FactorRows>(Session().messages[1]).rows,
              ElementsAre(6, kFactorsLost));
}

TEST_F(MemberTest, JobThatGoesBackHasNotBegunTheStepOfTheRequest) {
  Enter(3);
  Outbox out;
  member_.OnWantCheckpoint(12, out);
  EpochStart back = StartOf(4);
  back.from_base = true;
  Hear(back);
  const Effects resumed = Session();
  ASSERT_THAT(resumed.messages, SizeIs(2));
  EXPECT_EQ(std::get<WantCheckpoint>(resumed.messages[1]).begun_step,
            kInitialRound);
}

TEST_F(MemberTest, RefusalEndsTheMember) {
  Session();
  const Effects refused =
      Hear(Refusal{FailedPreconditionError("another model")});
  ASSERT_EQ(refused.ended.size(), 1u);
  EXPECT_EQ(refused.ended[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.ended[0].message(), "another model");
  EXPECT_TRUE(member_.over());
  // A refused process has told its user so, and must not join later.
  EXPECT_THAT(Session().messages, IsEmpty());
}

TEST_F(MemberTest, MemberEndsWithTheJob) {
  Enter(3);
  const Effects finished = Hear(JobOver{JobState::kFinished, ""});
  ASSERT_EQ(finished.ended.size(), 1u);
  EXPECT_TRUE(finished.ended[0].ok());
  EXPECT_TRUE(member_.over());
  // The member ends once, and ignores all later messages.
  EXPECT_THAT(Hear(JobOver{JobState::kFailed, "late"}).ended, IsEmpty());
  EXPECT_THAT(Hear(PrepareEpoch{4}).messages, IsEmpty());
  EXPECT_THAT(Enter(4).followed, IsEmpty());
  EXPECT_THAT(Lose(PeerId::Shard(0)).messages, IsEmpty());
}

TEST_F(MemberTest, FailureIsReportedWithItsReason) {
  Enter(3);
  const Effects failed = Hear(JobOver{JobState::kFailed, "shard 0 is gone"});
  ASSERT_EQ(failed.ended.size(), 1u);
  EXPECT_EQ(failed.ended[0].code(), absl::StatusCode::kAborted);
  EXPECT_EQ(failed.ended[0].message(), "the job failed: shard 0 is gone");
}

}  // namespace
}  // namespace nereus
