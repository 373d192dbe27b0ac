#include "server/coordinator/join_brake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr int kShare = 20;

JoinRequest RequestOf(Role role, const std::string& name, int shard = 0) {
  JoinRequest request;
  request.role = role;
  request.shard = shard;
  request.name = name;
  request.incarnation = std::hash<std::string>()(name);
  return request;
}

JoinRequest WorkerOf(const std::string& name) {
  return RequestOf(Role::kWorker, name);
}

// A running job without steps: members join and end at a clock of its own.
class Job {
 public:
  explicit Job(int share = kShare) : brake_(share) {}

  JoinBrake& brake() { return brake_; }
  absl::Time now() const { return now_; }
  void Pass(absl::Duration time) { now_ += time; }
  absl::Duration WaitOf(const JoinRequest& request,
                        bool job_waits = false) const {
    return brake_.WaitOf(request, job_waits, now_);
  }

  // A process joins, and the change of epoch takes `change`.
  void Admit(const JoinRequest& request, absl::Duration change) {
    brake_.OnJoin(request, now_);
    roster_.Add(request, ++session_, /*running=*/true, now_);
    Pass(change);
    BeginEpoch();
  }
  // The worker says that it has done a round.
  void TakePart(const std::string& name) {
    Find(name).times.took_part_at = now_;
  }
  // The member dies, and counts as dead after `silence`.
  void Kill(const std::string& name, absl::Duration silence) {
    const absl::Time since = now_;
    Pass(silence);
    MemberRecord& member = Find(name);
    brake_.OnEnd(member, since, now_);
    roster_.Remove(PeerId(member.id));
  }
  void BeginEpoch() {
    brake_.OnEpoch(roster_, now_);
    for (MemberRecord& member : roster_.members()) {
      if (!member.admitted) member.times.admitted_at = now_;
      member.admitted = true;
    }
    roster_.UseRanks();
  }
  // A worker with which the job has begun.
  void Begin(const std::string& name) {
    roster_.Add(WorkerOf(name), ++session_, /*running=*/false, now_);
    roster_.members().back().admitted = true;
  }
  int ranks() const { return roster_.next_rank(); }

 private:
  MemberRecord& Find(const std::string& name) {
    return *std::find_if(
        roster_.members().begin(), roster_.members().end(),
        [&](const MemberRecord& each) { return each.request.name == name; });
  }

  JoinBrake brake_;
  MemberList roster_;
  SessionId session_ = 0;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST(JoinBrakeTest, FirstNewcomerJoinsAtOnce) {
  const Job job;
  EXPECT_EQ(job.WaitOf(WorkerOf("a")), absl::ZeroDuration());
}

TEST(JoinBrakeTest, NextNewcomerWaitsTwentyTimesTheChangeOfTheLast) {
  Job job;
  job.Admit(WorkerOf("a"), absl::Milliseconds(300));
  EXPECT_EQ(job.WaitOf(WorkerOf("b")), absl::Seconds(6));
  EXPECT_THAT(job.brake().WhyWait(job.WaitOf(WorkerOf("b"))),
              HasSubstr("waits 6 s, because processes that have just joined "
                        "stopped the steps for 0.3 s"));
  job.Pass(absl::Seconds(6));
  EXPECT_EQ(job.WaitOf(WorkerOf("b")), absl::ZeroDuration());
}

TEST(JoinBrakeTest, ShortChangeCountsForATenthOfASecond) {
  Job job;
  job.Admit(WorkerOf("a"), absl::Milliseconds(3));
  EXPECT_EQ(job.WaitOf(WorkerOf("b")), absl::Seconds(2));
}

TEST(JoinBrakeTest, EndOfANewcomerCountsFromItsLastMessage) {
  Job job;
  job.Admit(WorkerOf("a"), absl::Milliseconds(100));
  job.TakePart("a");
  job.Kill("a", absl::Seconds(1));
  // The cost of the end is known when the next epoch begins.
  EXPECT_EQ(job.WaitOf(WorkerOf("a")), absl::InfiniteDuration());
  EXPECT_THAT(job.brake().WhyWait(absl::InfiniteDuration()),
              HasSubstr("until the job goes on without"));
  job.Pass(absl::Milliseconds(500));
  job.BeginEpoch();
  EXPECT_EQ(job.WaitOf(WorkerOf("a")),
            kShare * absl::Milliseconds(1600) - absl::Milliseconds(1500));
  EXPECT_THAT(job.brake().WhyWait(job.WaitOf(WorkerOf("a"))),
              HasSubstr("waits 31 s, because processes that joined lately "
                        "ended soon, and stopped the steps for 1.5 s: "
                        "processes that join may stop them for 1/20"));
}

TEST(JoinBrakeTest, NewcomerThatDoesNoRoundCostsItsWholeLife) {
  Job job;
  job.Admit(WorkerOf("a"), absl::Milliseconds(100));
  job.Pass(absl::Seconds(3));
  job.Kill("a", absl::Seconds(1));
  job.BeginEpoch();
  EXPECT_EQ(job.WaitOf(WorkerOf("a")),
            kShare * absl::Milliseconds(4100) - absl::Seconds(4));
}

TEST(JoinBrakeTest, OldMemberLeavesAVacancy) {
  Job job;
  job.Admit(WorkerOf("a"), absl::Milliseconds(100));
  job.TakePart("a");
  job.Pass(JoinBrake::kOldAfter);
  job.Admit(WorkerOf("b"), absl::Milliseconds(100));
  job.Kill("a", absl::Seconds(1));
  // The place of the old member is free at once, whatever "b" has cost.
  EXPECT_EQ(job.WaitOf(WorkerOf("a")), absl::ZeroDuration());
  EXPECT_GT(job.WaitOf(WorkerOf("c")), absl::ZeroDuration());
  job.Admit(WorkerOf("a"), absl::Milliseconds(100));
  // Only once.
  EXPECT_GT(job.WaitOf(WorkerOf("a")), absl::ZeroDuration());
}

// The member has paid for itself by its life, so a newcomer that comes alone
// does not wait. It gives no right to join while other newcomers have costs.
TEST(JoinBrakeTest, MemberThatIsNotOldLeavesNoVacancy) {
  for (const bool others : {false, true}) {
    Job job;
    job.Admit(WorkerOf("a"), absl::Milliseconds(100));
    job.TakePart("a");
    job.Pass(absl::Minutes(2));
    if (others) job.Admit(WorkerOf("b"), absl::Milliseconds(100));
    job.Kill("a", absl::Seconds(1));
    job.BeginEpoch();
    EXPECT_EQ(job.WaitOf(WorkerOf("a")),
              others ? absl::Seconds(21) : absl::ZeroDuration());
  }
}

TEST(JoinBrakeTest, MembersWithWhichTheJobBeganAreOld) {
  Job job;
  job.Begin("a");
  job.Kill("a", absl::Seconds(11));
  job.BeginEpoch();
  EXPECT_EQ(job.WaitOf(WorkerOf("a")), absl::ZeroDuration());
  EXPECT_EQ(job.WaitOf(WorkerOf("b")), absl::ZeroDuration());
}

TEST(JoinBrakeTest, ProcessThatIsNotAdmittedTakesNoVacancy) {
  Job job;
  job.Begin("a");
  job.Kill("a", absl::Seconds(1));
  job.brake().OnJoin(WorkerOf("a"), job.now());
  job.BeginEpoch();  // The process has gone.
  job.Admit(WorkerOf("b"), absl::Milliseconds(100));
  EXPECT_GT(job.WaitOf(WorkerOf("c")), absl::ZeroDuration());
  EXPECT_EQ(job.WaitOf(WorkerOf("a")), absl::ZeroDuration());
}

// The replacement of an old member is no excuse for a crash loop.
TEST(JoinBrakeTest, ReplacementThatEndsSoonPaysForItsJoinToo) {
  Job job;
  job.Begin("a");
  job.Kill("a", absl::Seconds(1));
  job.Admit(WorkerOf("a"), absl::Milliseconds(200));
  job.TakePart("a");
  EXPECT_EQ(job.WaitOf(WorkerOf("b")), absl::ZeroDuration());
  job.Kill("a", absl::Seconds(1));
  job.BeginEpoch();
  EXPECT_EQ(job.WaitOf(WorkerOf("a")),
            kShare * absl::Milliseconds(1200) - absl::Seconds(1));
}

TEST(JoinBrakeTest, PlaceIsKnownByTheLaunchersNumberOrTheShard) {
  Job job;
  JoinRequest numbered = WorkerOf("host:1");
  numbered.launch_rank = 3;
  job.Admit(numbered, absl::Milliseconds(100));
  job.Pass(absl::Seconds(2));
  job.Admit(RequestOf(Role::kShard, "host:2", 5), absl::Milliseconds(100));
  job.TakePart("host:1");
  job.Pass(absl::Minutes(5));
  job.Kill("host:1", absl::Seconds(1));
  job.Kill("host:2", absl::Seconds(1));
  job.Admit(WorkerOf("c"), absl::Milliseconds(100));
  JoinRequest again = WorkerOf("host:7");
  EXPECT_GT(job.WaitOf(again), absl::ZeroDuration());
  again.launch_rank = 3;
  EXPECT_EQ(job.WaitOf(again), absl::ZeroDuration());
  EXPECT_GT(job.WaitOf(RequestOf(Role::kShard, "host:8", 4)),
            absl::ZeroDuration());
  EXPECT_EQ(job.WaitOf(RequestOf(Role::kShard, "host:8", 5)),
            absl::ZeroDuration());
}

TEST(JoinBrakeTest, JobThatWaitsForAServerGetsItAtOnce) {
  Job job;
  const JoinRequest server = RequestOf(Role::kShard, "host:1", 0);
  job.Admit(server, absl::Milliseconds(100));
  job.Kill("host:1", absl::Seconds(1));
  EXPECT_GT(job.WaitOf(server), absl::ZeroDuration());
  EXPECT_EQ(job.WaitOf(server, /*job_waits=*/true), absl::ZeroDuration());
}

// The job stands, so the brake protects only the ranks.
TEST(JoinBrakeTest, JobThatWaitsForAWorkerGetsItAtOnceButNotForEver) {
  Job job;
  for (int i = 0; i <= JoinBrake::kRanksAtOnce; ++i) {
    EXPECT_EQ(job.WaitOf(WorkerOf("a"), /*job_waits=*/true),
              absl::ZeroDuration());
    job.Admit(WorkerOf("a"), absl::ZeroDuration());
    job.Kill("a", absl::ZeroDuration());
    job.BeginEpoch();
  }
  EXPECT_EQ(job.WaitOf(WorkerOf("a"), /*job_waits=*/true), absl::Seconds(20));
}

TEST(JoinBrakeTest, TimeInWhichTheJobStandsAnywayCostsNothing) {
  Job job;
  job.brake().OnJoin(WorkerOf("a"), job.now());
  job.Pass(absl::Minutes(10));
  job.brake().Excuse(job.now());
  job.BeginEpoch();
  EXPECT_EQ(job.WaitOf(WorkerOf("b")), kShare * JoinBrake::kJoinCostMin);
}

TEST(JoinBrakeTest, PauseOfTheCoordinatorIsNobodysCost) {
  Job job;
  job.brake().OnJoin(WorkerOf("a"), job.now());
  job.Pass(absl::Minutes(1));
  job.brake().Delay(absl::Minutes(1));
  job.BeginEpoch();
  EXPECT_EQ(job.WaitOf(WorkerOf("b")), kShare * JoinBrake::kJoinCostMin);
}

TEST(JoinBrakeTest, ShareOfZeroHoldsNoProcessUp) {
  Job job(/*share=*/0);
  job.Admit(WorkerOf("a"), absl::Seconds(1));
  job.Kill("a", absl::Seconds(1));
  EXPECT_EQ(job.WaitOf(WorkerOf("a")), absl::ZeroDuration());
}

// The bound that the header states, whatever the lengths of changes and lives.
TEST(JoinBrakeTest, CrashLoopCostsOneTwentiethOfTheTime) {
  for (int seed = 0; seed < 50; ++seed) {
    Job job;
    absl::Duration lost;
    const absl::Time begin = job.now();
    for (int i = 0; i < 100; ++i) {
      const absl::Duration wait = job.WaitOf(WorkerOf("loop"));
      ASSERT_LT(wait, absl::Hours(1));
      job.Pass(wait);
      // A member that has paid costs less than it has lived.
      const absl::Duration change = absl::Milliseconds(20 + seed * i % 700);
      const absl::Duration silence =
          absl::Milliseconds(1000 + seed * 37 % 3000);
      job.Admit(WorkerOf("loop"), change);
      if (seed % 2 == 0) job.TakePart("loop");
      const absl::Duration life = absl::Milliseconds(seed * 613 % 40000);
      job.Pass(life);
      job.Kill("loop", silence);
      job.BeginEpoch();
      lost += change + silence + (seed % 2 == 0 ? absl::ZeroDuration() : life);
    }
    const absl::Duration last_wait = job.WaitOf(WorkerOf("loop"));
    EXPECT_LE(kShare * lost, job.now() + last_wait - begin + absl::Seconds(1))
        << seed;
    // A rank lasts 20 s on average.
    EXPECT_LE(job.ranks() * absl::Seconds(20), job.now() + last_wait - begin);
  }
}

TEST(JoinBrakeTest, ManyThatCrashTogetherUseNoMoreRanksThanOne) {
  Job job;
  const absl::Time begin = job.now();
  for (int i = 0; i < 20; ++i) {
    job.Pass(job.WaitOf(WorkerOf("0")));
    for (int k = 0; k < 8; ++k) {
      job.Admit(WorkerOf(absl::StrCat(k)), absl::ZeroDuration());
    }
    for (int k = 0; k < 8; ++k) job.Kill(absl::StrCat(k), absl::ZeroDuration());
    job.BeginEpoch();
  }
  job.Pass(job.WaitOf(WorkerOf("0")));
  EXPECT_EQ(job.ranks(), 160);
  EXPECT_LE(job.ranks() * absl::Seconds(20), job.now() - begin);
}

TEST(JoinBrakeTest, WaitingProcessThatIsSilentIsDropped) {
  Job job;
  CoordinatorOutbox out;
  job.brake().Hold({7, WorkerOf("a"), job.now(), {}}, out);
  job.brake().Hold({8, WorkerOf("b"), job.now(), {}}, out);
  job.Pass(absl::Seconds(8));
  job.brake().NoteMessage(8, job.now());
  job.Pass(absl::Seconds(4));
  EXPECT_TRUE(out.empty());
  job.brake().DropSilent(absl::Seconds(10), job.now(), out);
  ASSERT_THAT(job.brake().waiting(), SizeIs(1));
  EXPECT_EQ(job.brake().waiting()[0].session, 8);
  EXPECT_THAT(out, SizeIs(2));  // The refusal and the end of the session.
}

TEST(JoinBrakeTest, ProcessWaitsInItsNewestSession) {
  Job job;
  CoordinatorOutbox out;
  job.brake().Hold({7, WorkerOf("a"), job.now(), {}}, out);
  job.brake().Hold({8, WorkerOf("a"), job.now(), {}}, out);
  ASSERT_THAT(job.brake().waiting(), SizeIs(1));
  EXPECT_EQ(job.brake().waiting()[0].session, 8);
  EXPECT_THAT(out, SizeIs(1));  // The old session ends.
  EXPECT_FALSE(job.brake().EndWait(7));
  EXPECT_TRUE(job.brake().EndWait(8));
}

}  // namespace
}  // namespace nereus
