// The driver of a machine, with a fake transport and a fake machine. All fakes
// write into one log, so a test checks the order of actions. Then its parts:
// the pulse, the turn of the driving thread, and the watch on links.

#include "common/driver/machine_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/driver/driving_turn.h"
#include "common/driver/link_watch.h"
#include "common/transport/transport.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Records the calls of the transport, the machine and the driver's hooks, in
// order.
class Log {
 public:
  void Add(std::string entry) {
    MutexLock lock(&mu_);
    entries_.push_back(std::move(entry));
  }
  std::vector<std::string> Take() {
    MutexLock lock(&mu_);
    return std::exchange(entries_, {});
  }

 private:
  Mutex mu_;
  std::vector<std::string> entries_;
};

// Records calls, and delivers the frames of a test.
class FakeTransport final : public Transport {
 public:
  explicit FakeTransport(Log* log) : log_(log) {}

  void Deliver(const Frame& frame) {
    MutexLock lock(&mu_);
    incoming_.push_back(frame);
  }

  int port() const override { return 1; }
  void SetRoster(const Hello& self, Roster roster) override {
    log_->Add(absl::StrCat("roster of ", roster.size(), " in epoch ",
                           self.epoch, " as ", PeerName(self.self)));
  }
  void Connect(PeerId peer, const std::string& address,
               const ConnectLimits& limits) override {
    connect_limits[peer] = limits;
    log_->Add(absl::StrCat("connect ", PeerName(peer), " at ", address));
  }
  void Disconnect(PeerId peer) override {
    log_->Add("disconnect " + PeerName(peer));
  }
  void Send(PeerId to, const Frame& frame) override {
    std::string values;
    if (frame.header.wire == WireType::kFloat32) {
      for (const float value : FloatsOf(frame.payload)) {
        absl::StrAppend(&values, " ", value);
      }
    }
    log_->Add(absl::StrCat("send to ", PeerName(to), ":", values));
  }
  void Poll(absl::Duration timeout, FrameHandler& handler) override {
    std::deque<Frame> frames;
    {
      MutexLock lock(&mu_);
      mu_.AwaitWithTimeout([this] { return woken_ || !incoming_.empty(); },
                           timeout);
      woken_ = false;
      frames.swap(incoming_);
    }
    for (const Frame& frame : frames) Hand(frame, handler);
    if (connects.has_value()) handler.OnConnected(*std::exchange(connects, {}));
  }
  void LimitSilence(absl::Duration silence_max) override {
    log_->Add(
        absl::StrCat("limit silence to ", absl::FormatDuration(silence_max)));
  }
  void Flush() override { log_->Add("flush"); }
  void Wake() override {
    MutexLock lock(&mu_);
    woken_ = true;
  }
  std::vector<TrafficCount> traffic() const override { return {}; }
  ConnectionCounts connections() const override { return {}; }
  void Shutdown(absl::Duration) override {}

  std::optional<PeerId> connects;  // Peer that connects in the next Poll.
  std::map<PeerId, ConnectLimits>
      connect_limits;  // Limits of the last Connect.

 private:
  static void Hand(const Frame& frame, FrameHandler& handler) {
    const PeerId from = frame.header.sender;
    const auto landing = handler.OnHeader(from, frame.header);
    ASSERT_TRUE(landing.ok()) << landing.status();
    if (landing->kind == Landing::Kind::kDiscard) return;
    Frame received = frame;
    if (landing->kind == Landing::Kind::kPlace) {
      received.payload = landing->place;
      std::memcpy(received.payload.data(), frame.payload.data(),
                  static_cast<size_t>(frame.payload.bytes()));
    }
    handler.OnFrame(from, received);
  }

  Log* const log_;
  Mutex mu_;
  bool woken_ = false;
  std::deque<Frame> incoming_;
};

// Lands each frame at `landing`. `on_frame` adds the actions.
struct FakeMachine final : Machine {
  absl::StatusOr<Landing> OnHeader(PeerId, const FrameHeader&) const override {
    return landing;
  }
  void OnFrame(PeerId, const Frame& frame, Outbox& out) override {
    on_frame(frame, out);
  }
  void Freeze() override {}
  MachineReport Report() const override { return {}; }
  void OnEpoch(JobPtr, Outbox& out) override { out.Add(LayerDone{0, 5}); }
  void SaveLast(int64_t, int32_t, Outbox&) override {}
  std::optional<ReplicaChecksums> OnChecksum(const ChecksumValues& checked,
                                             uint32_t crc) override {
    return ReplicaChecksums{
        0, checked.round, {crc}, checked.sampled.has_value()};
  }

  Landing landing;
  std::function<void(const Frame&, Outbox&)> on_frame;
};

// Arrival that ends when a test says so.
struct FakeArrival final : Arrival {
  bool IsThere(int64_t) override { return is_there; }
  absl::Status Await(int64_t) override {
    return InternalError("a sample must not wait");
  }
  std::atomic<bool> is_there{false};
};

class FakeCompute final : public Compute {
 public:
  explicit FakeCompute(Log* log) : log_(log) {}
  std::string name() const override { return "fake"; }
  absl::StatusOr<BadValue> Multiply(const MultiplyFactors&,
                                    absl::FunctionRef<void(int64_t)>) override {
    log_->Add("multiply");
    return BadValue();
  }
  bool SplitsOnDevice(int layer) const override { return layer == 0; }
  absl::Status Split(const SplitGradient&) override {
    log_->Add("split");
    return InternalError("the device is gone");
  }
  absl::StatusOr<Buffer> Sample(int layer, const SampledElements&) override {
    log_->Add(absl::StrCat("sample ", layer));
    return sample;
  }

  Buffer sample;  // Result of Sample.

 private:
  Log* const log_;
};

// Returns the job as worker 1 of two sees it, with one server. Layer 0 is sent
// as bfloat16.
class MachineDriverTest : public testing::Test {
 protected:
  MachineDriverTest()
      : job_(TestJob(2, 1, {VectorLayer("v", 4)}, {}, Scheme::kServer,
                     WireType::kBfloat16)),
        transport_(&log_),
        member_({},
                [this](const EpochStart&, Outbox&) {
                  auto machine = std::make_unique<FakeMachine>();
                  machine_ = machine.get();
                  return machine;
                }),
        compute_(&log_) {
    Start(Compute::OnCpu());
  }

  void Start(Compute* compute) {
    MachineDriver::Events events;
    events.compute = compute;
    events.layer_done = [this](const LayerDone& done) {
      log_.Add(absl::StrCat("done ", done.layer, " ", done.round));
    };
    events.send_message = [this](const MemberMessage& message) {
      const auto* failure = std::get_if<Failure>(&message);
      const auto* damaged = std::get_if<CheckpointDamaged>(&message);
      log_.Add(failure != nullptr   ? "failure: " + failure->reason
               : damaged != nullptr ? absl::StrCat("damaged ", damaged->round,
                                                   ": ", damaged->reason)
                                    : "message");
    };
    events.entered = [this](const std::shared_ptr<const EpochStart>& start) {
      log_.Add(absl::StrCat("entered ", start->job->epoch));
    };
    events.ended = [this](const absl::Status& why) {
      ended_ = std::string(why.message());
      log_.Add("ended");
    };
    events.load = [this](const LoadCheckpoint&,
                         std::shared_ptr<Restore> restore) {
      restore_ = std::move(restore);
      log_.Add("load");
      if (load_status_.has_value()) restore_->Finish(*load_status_);
    };
    driver_.reset();
    driver_ = std::make_unique<MachineDriver>(&transport_, &member_,
                                              /*layers=*/1, absl::Seconds(1),
                                              std::move(events));
    Run([this](Outbox& out) { member_.OnMessage(StartOf(job_), out); });
  }

  EpochStart StartOf(JobPtr job) const {
    EpochStart start;
    start.self = PeerId::Worker(1);
    start.job = std::move(job);
    start.epoch_members = {{PeerId::Worker(0), 1, "a"},
                           {PeerId::Worker(1), 2, "b"},
                           {PeerId::Shard(0), 3, "c"}};
    return start;
  }

  // Runs an event and its actions.
  void Run(MachineDriver::Event event) {
    // ThreadSanitizer does not see the order that an absl::Notification makes.
    std::promise<void> done;
    driver_->Post(std::move(event));
    driver_->Post([&](Outbox&) { done.set_value(); });
    done.get_future().wait();
  }

  // Waits until the log has exactly `entry`, and takes it.
  void AwaitLog(const std::string& entry) {
    const absl::Time begin = SteadyNow();
    std::vector<std::string> entries;
    while (entries.empty() && SteadyNow() - begin < absl::Minutes(1)) {
      entries = log_.Take();
    }
    EXPECT_THAT(entries, ElementsAre(entry));
  }

  // Loads a checkpoint, which does not succeed, and then tries to save and to
  // send values.
  void LoadAndSend() {
    log_.Take();
    driver_->Post([&](Outbox& out) {
      out.Add(LoadCheckpoint{7, {}});
      out.Add(SendFrame{PeerId::Shard(0), FloatFrame({5})});
    });
    Run([&](Outbox& out) {
      out.Add(SaveCheckpoint{});
      out.Add(SendFrame{PeerId::Shard(0), FloatFrame({6})});
    });
  }

  // Delivers frames with these values, and waits for their actions.
  void Deliver(FrameKind kind, const std::vector<float>& values) {
    for (const Frame& frame :
         FramesOf(*job_, PeerId::Shard(0), kind, 0, 0, 3, values)) {
      bytes_ += kFrameHeaderBytes + frame.payload.bytes();
      transport_.Deliver(frame);
    }
    const auto is_counted = [this] {
      return driver_->traffic().bytes_received(0) == bytes_;
    };
    driver_->DriveUntil(is_counted, SteadyNow() + absl::Minutes(2));
    Run([](Outbox&) {});
  }

  Frame FloatFrame(const std::vector<float>& values) const {
    Frame frame;
    frame.header = MakeHeader(*job_, PeerId::Worker(1), FrameKind::kCopy, 0, 0,
                              /*round=*/3);
    frame.header.wire = WireType::kFloat32;
    frame.payload = FloatBuffer(values);
    frame.header.payload_bytes = static_cast<uint32_t>(frame.payload.bytes());
    return frame;
  }

  const JobPtr job_;
  Log log_;
  FakeTransport transport_;
  Member member_;
  FakeMachine* machine_ = nullptr;
  FakeCompute compute_;
  std::shared_ptr<Restore> restore_;  // Argument of the last `load`.
  // Outcome that `load` gives at once; nothing: the test gives it later.
  std::optional<absl::Status> load_status_;
  std::string ended_;  // Message of the last call of `ended`.
  int64_t bytes_ = 0;  // Number of bytes delivered so far.
  std::unique_ptr<MachineDriver> driver_;
};

TEST_F(MachineDriverTest, EpochConnectsAndEntersAfterTheMachine) {
  EXPECT_THAT(log_.Take(), ElementsAre("roster of 3 in epoch 1 as worker 1",
                                       "limit silence to 10s",
                                       "connect shard 0 at c", "entered 1"));
  Run([this](Outbox& out) {
    EpochStart start = StartOf(EpochAfter(*job_));
    start.epoch_members[2].incarnation = 9;
    member_.OnMessage(start, out);
  });
  EXPECT_THAT(
      log_.Take(),
      ElementsAre("disconnect shard 0", "roster of 3 in epoch 2 as worker 1",
                  "limit silence to 10s", "connect shard 0 at c", "done 0 5",
                  "entered 2"));
}

// A deadline of the wall clock would pass early, or never, when that clock is
// set.
TEST_F(MachineDriverTest, ConnectDeadlineIsATimeOfTheSteadyClock) {
  const absl::Time now = SteadyNow();
  const absl::Time deadline =
      transport_.connect_limits[PeerId::Shard(0)].deadline;
  EXPECT_GT(deadline, now - absl::Minutes(2));
  EXPECT_LE(deadline, now + absl::Seconds(1));
}

// All members wait for a connection that was there and is gone. So its end must
// not take longer to be told than the silence by which it was noticed.
TEST_F(MachineDriverTest, LostConnectionHasALeaseToComeBack) {
  Run([this](Outbox&) { transport_.connects = PeerId::Shard(0); });
  Run([](Outbox&) {});
  Run([this](Outbox& out) {
    EpochStart start = StartOf(EpochAfter(*job_));
    start.lease = absl::Milliseconds(200);
    member_.OnMessage(start, out);
  });
  EXPECT_LE(transport_.connect_limits[PeerId::Shard(0)].deadline,
            SteadyNow() + absl::Milliseconds(200));
}

// A mate that was reached once, and a process of another host, may be busy.
TEST_F(MachineDriverTest, OnlyAMateThatWasNeverReachedIsGivenUpSoon) {
  const auto enter = [this](uint64_t epoch) {
    Run([this, epoch](Outbox& out) {
      member_.OnMessage(StartOf(EpochAfter(*job_,
                                           [&](Job& job) {
                                             job.epoch = epoch;
                                             job.workers[0].host = 3;
                                             job.workers[1].host = 3;
                                           })),
                        out);
    });
    return transport_.connect_limits[PeerId::Worker(0)].unreachable_max;
  };
  EXPECT_EQ(enter(2), absl::Seconds(5));
  EXPECT_EQ(transport_.connect_limits[PeerId::Shard(0)].unreachable_max,
            absl::InfiniteDuration());
  Run([this](Outbox&) { transport_.connects = PeerId::Worker(0); });
  Run([](Outbox&) {});
  EXPECT_EQ(enter(3), absl::InfiniteDuration());
}

TEST_F(MachineDriverTest, SampleOfADeviceIsSentByAHeartbeatAfterItsArrival) {
  Start(&compute_);
  log_.Take();
  const Buffer memory = FloatBuffer({1, 2, 3, 4});
  const auto outdated = std::make_shared<FakeArrival>();
  const auto copy = std::make_shared<FakeArrival>();
  compute_.sample = Buffer::Borrow(
      memory.data() + 4, 8, [memory] {}, copy);
  const auto beat = [&] {
    driver_->OnHeartbeatDue([] {});
    Run([](Outbox&) {});
  };
  const auto sample = [&] {
    Run([&](Outbox& out) {
      out.Add(ChecksumValues{0, 7,
                             Buffer::Borrow(
                                 memory.data(), 16, [memory] {}, outdated),
                             SampledElements{1, 2, 2, 1}});
    });
  };
  sample();
  EXPECT_THAT(log_.Take(), ElementsAre("sample 0"));
  beat();
  EXPECT_THAT(log_.Take(), ElementsAre());
  copy->is_there = true;
  beat();
  EXPECT_THAT(log_.Take(), ElementsAre("message"));
  beat();
  EXPECT_THAT(log_.Take(), ElementsAre());
  // If the host has the newest values, the driver reads them at once.
  outdated->is_there = true;
  sample();
  EXPECT_THAT(log_.Take(), ElementsAre("message"));
}

TEST_F(MachineDriverTest, ActionsAreCarriedOutInOrder) {
  log_.Take();
  const Buffer sum = FloatBuffer({1, 2});
  Run([&](Outbox& out) {
    Frame frame = FloatFrame({0, 0});
    frame.payload = sum;
    out.Add(Accumulate{sum, Addend(FloatBuffer({10, 20}))});
    out.Add(SendFrame{PeerId::Shard(0), frame});
    out.Add(ScaleValues{sum, 2.0f});
    out.Add(BroadcastFrame{RanksOf(job_->workers, /*self=*/1), frame});
    out.Add(LayerDone{0, 7});
    out.Add(ChecksumValues{0, 7, sum});
    out.Add(EndMembership{});
  });
  EXPECT_THAT(log_.Take(),
              ElementsAre("send to shard 0: 11 22", "send to worker 0: 22 44",
                          "done 0 7", "message", "ended"));
  EXPECT_EQ(driver_->traffic().bytes_sent(0), 2 * (kFrameHeaderBytes + 8));
}

TEST_F(MachineDriverTest, EncodedFrameInScratchIsDecodedIntoTheSum) {
  const Buffer sum = FloatBuffer({1, 2, 3, 4});
  machine_->on_frame = [&](const Frame& frame, Outbox& out) {
    EXPECT_EQ(frame.payload.bytes(), 8);
    out.Add(Accumulate{sum, Addend(frame)});
  };
  Deliver(FrameKind::kContribution, {10, 20, 30, 40});
  EXPECT_EQ(FloatsOf(sum), (std::vector<float>{11, 22, 33, 44}));
}

TEST_F(MachineDriverTest, EncodedFrameWithAPlaceIsDecodedThere) {
  const Buffer place = FloatBuffer({0, 0, 0, 0});
  std::vector<float> seen;
  machine_->landing = Landing::At(place);
  machine_->on_frame = [&](const Frame& frame, Outbox&) {
    seen = FloatsOf(frame.payload);
  };
  Deliver(FrameKind::kResult, {10, 20, 30, 40});
  EXPECT_EQ(seen, (std::vector<float>{10, 20, 30, 40}));
  EXPECT_EQ(FloatsOf(place), seen);
}

TEST_F(MachineDriverTest, FailedCheckStopsAllButMessages) {
  log_.Take();
  const Buffer sum = FloatBuffer({0, 0, 0, 0});
  const Buffer other = FloatBuffer({1});
  machine_->on_frame = [&](const Frame& frame, Outbox& out) {
    Addend addend(frame);
    addend.check = ValueCheck{0, 3, 0, 0};
    out.Add(SendFrame{PeerId::Shard(0), FloatFrame({5})});
    out.Add(Accumulate{sum, addend});
    out.Add(CopyValues{other, FloatBuffer({2})});
    out.Add(SendFrame{PeerId::Shard(0), FloatFrame({6})});
    out.Add(SendMessage{Leave{3}});
  };
  Deliver(FrameKind::kContribution, {1, 2, NAN, 4});
  Run([&](Outbox& out) {
    out.Add(LayerDone{0, 4});
    out.Add(SendMessage{Leave{4}});
  });
  EXPECT_THAT(log_.Take(),
              ElementsAre("send to shard 0: 5",
                          "failure: worker 0: layer v, step 3: the gradient "
                          "has nan at element 2 of 4",
                          "message", "message"));
  EXPECT_EQ(FloatsOf(other), (std::vector<float>{1}));
}

TEST_F(MachineDriverTest, DeviceComputesAndItsErrorEndsTheJob) {
  Start(&compute_);
  log_.Take();
  Run([](Outbox& out) { out.Add(MultiplyFactors{}); });
  EXPECT_THAT(log_.Take(), ElementsAre("multiply"));
  Run([](Outbox& out) {
    out.Add(SplitGradient{});
    out.Add(LayerDone{0, 4});
  });
  EXPECT_THAT(log_.Take(), ElementsAre("split", "failure: the device is gone"));
}

TEST_F(MachineDriverTest, DriveUntilRunsEventsOnTheCallingThread) {
  std::thread::id ran_on;
  int calls = 0;
  const auto has_run = [&] {
    // DriveUntil makes the first call before this thread has the turn.
    if (++calls == 2) {
      driver_->Post([&](Outbox&) { ran_on = std::this_thread::get_id(); });
    }
    return ran_on != std::thread::id();
  };
  driver_->DriveUntil(has_run, SteadyNow() + absl::Minutes(2));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST_F(MachineDriverTest, DriveUntilReturnsAtTheDeadline) {
  driver_->DriveUntil([] { return false; },
                      SteadyNow() + absl::Milliseconds(1));
  bool ran = false;
  Run([&](Outbox&) { ran = true; });
  EXPECT_TRUE(ran);
}

TEST_F(MachineDriverTest, EventsPostedAfterStopAreDropped) {
  driver_->Stop();
  log_.Take();
  bool ran = false;
  driver_->Post([&](Outbox&) { ran = true; });
  driver_->DriveUntil([] { return false; }, SteadyNow() + absl::Minutes(2));
  driver_.reset();
  EXPECT_FALSE(ran);
  EXPECT_THAT(log_.Take(), IsEmpty());
}

TEST_F(MachineDriverTest, BlockedDriverSendsNoHeartbeat) {
  absl::Notification blocked;
  absl::Notification released;
  EXPECT_TRUE(driver_->OnHeartbeatDue([] {}).is_alive);
  // The driver has answered the heartbeat before it is blocked.
  Run([](Outbox&) {});
  driver_->Post([&](Outbox&) {
    blocked.Notify();
    released.WaitForNotification();
  });
  blocked.WaitForNotification();
  EXPECT_TRUE(driver_->OnHeartbeatDue([] {}).is_alive);
  EXPECT_FALSE(driver_->OnHeartbeatDue([] {}).is_alive);
  released.Notify();
  Run([](Outbox&) {});
  const Pulse::Beat beat = driver_->OnHeartbeatDue([] {});
  EXPECT_TRUE(beat.is_alive);
  EXPECT_FALSE(beat.work.has_value());
}

// The machine can do nothing before it has its values. Heartbeats say how far
// the reading is.
TEST_F(MachineDriverTest, RestoreHoldsUpFramesAndEventsButNoHeartbeat) {
  log_.Take();
  driver_->Post([this](Outbox& out) {
    out.Add(LoadCheckpoint{});
    out.Add(SendFrame{PeerId::Shard(0), FloatFrame({6})});
  });
  driver_->Post([this](Outbox& out) {
    out.Add(SendFrame{PeerId::Shard(0), FloatFrame({7})});
  });
  AwaitLog("load");
  restore_->Note(3, 40);
  const LongWork work = {LongWork::Kind::kRestore, 3, 40};
  const absl::Time begin = SteadyNow();
  std::optional<Pulse::Beat> beat;
  int asked = 0;
  // Questions are answered again and again, although nothing else is done.
  while (asked < 3 && SteadyNow() - begin < absl::Minutes(1)) {
    beat = driver_->OnHeartbeatDue([] {});
    EXPECT_TRUE(beat->is_alive);
    if (beat->asks && beat->work == work) ++asked;
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(asked, 3);
  EXPECT_THAT(log_.Take(), IsEmpty());
  restore_->Finish(absl::OkStatus());
  Run([](Outbox&) {});
  EXPECT_THAT(log_.Take(),
              ElementsAre("send to shard 0: 6", "send to shard 0: 7"));
  EXPECT_FALSE(driver_->OnHeartbeatDue([] {}).work.has_value());
}

TEST_F(MachineDriverTest, RestoreThatGetsNoFurtherForALeaseEndsTheServer) {
  Run([this](Outbox& out) {
    EpochStart start = StartOf(EpochAfter(*job_));
    start.lease = absl::Milliseconds(300);
    member_.OnMessage(start, out);
  });
  log_.Take();
  driver_->Post([](Outbox& out) { out.Add(LoadCheckpoint{}); });
  AwaitLog("load");
  for (int block = 1; block <= 4; ++block) {
    restore_->Note(block, 40);
    absl::SleepFor(absl::Milliseconds(150));
    driver_->Post([](Outbox&) {});  // Makes the driver look.
  }
  EXPECT_THAT(log_.Take(), IsEmpty());
  AwaitLog("ended");
  EXPECT_THAT(ended_, HasSubstr("restores, 0.0 of 0.0 MB, and the disk has "
                                "read nothing for 300ms"));
  // The thread of the disk may answer after the driver is gone.
  driver_.reset();
  restore_->Finish(absl::OkStatus());
}

// The values are undefined: they must not reach a worker or a checkpoint.
TEST_F(MachineDriverTest, DriverThatCannotLoadSendsNothingMore) {
  load_status_ = UnavailableError("the disk is gone");
  LoadAndSend();
  EXPECT_THAT(log_.Take(), ElementsAre("load", "ended"));
  EXPECT_THAT(ended_, HasSubstr("the disk is gone"));
}

// There may be an older checkpoint: the process goes on with the next epoch
// that goes back.
TEST_F(MachineDriverTest,
       DamagedCheckpointIsToldAndHoldsUpUntilTheJobGoesBack) {
  load_status_ = DataLossError("the part is torn");
  LoadAndSend();
  EXPECT_THAT(log_.Take(), ElementsAre("load", "damaged 7: the part is torn"));
  Run([this](Outbox& out) {
    EpochStart start = StartOf(EpochAfter(*job_));
    start.from_base = true;
    member_.OnMessage(start, out);
  });
  log_.Take();
  Run([&](Outbox& out) {
    out.Add(SendFrame{PeerId::Shard(0), FloatFrame({7})});
  });
  EXPECT_THAT(log_.Take(), SizeIs(1));
}

TEST_F(MachineDriverTest, EpochThatNeedsMissingValuesEndsTheProcess) {
  load_status_ = DataLossError("the part is torn");
  LoadAndSend();
  log_.Take();
  Run([this](Outbox& out) {
    member_.OnMessage(StartOf(EpochAfter(*job_)), out);
  });
  EXPECT_THAT(log_.Take(), ElementsAre("ended"));
}

const LongWork kWork = {LongWork::Kind::kRestore, 3, 40};

void ExpectBeat(const Pulse::Beat& beat, bool is_alive, bool has_work,
                bool asks) {
  EXPECT_EQ(beat.is_alive, is_alive);
  EXPECT_EQ(beat.work.has_value(), has_work);
  EXPECT_EQ(beat.asks, asks);
}

TEST(PulseTest, DriverIsAliveOnlyIfItAnswersEachQuestion) {
  Pulse pulse;
  // A driver that has just started has had no time to answer.
  for (int beat = 0; beat < 3; ++beat) {
    ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/false,
               /*asks=*/true);
    pulse.Answer();
    pulse.Answer();  // Two answers count as one.
  }
  pulse.OnDue();
  for (int beat = 0; beat < 3; ++beat) {
    ExpectBeat(pulse.OnDue(), /*is_alive=*/false, /*has_work=*/false,
               /*asks=*/false);
  }
  pulse.Answer();
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/false,
             /*asks=*/true);
}

// A restore runs on another thread, so the driver answers meanwhile.
TEST(PulseTest, WorkIsReportedAlsoIfTheDriverAnswers) {
  Pulse pulse;
  pulse.SetWork(kWork);
  EXPECT_EQ(pulse.OnDue().work, kWork);
  pulse.Answer();
  const LongWork later = {LongWork::Kind::kRestore, 4, 40};
  pulse.SetWork(later);
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/true,
             /*asks=*/true);
  EXPECT_EQ(pulse.OnDue().work, later);
}

TEST(PulseTest, BusyDriverIsAliveWithoutAnswersUntilItsWorkEnds) {
  Pulse pulse;
  pulse.OnDue();
  pulse.SetWork(kWork);
  for (int beat = 0; beat < 3; ++beat) {
    ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/true,
               /*asks=*/false);
  }
  pulse.SetWork(std::nullopt);
  ExpectBeat(pulse.OnDue(), /*is_alive=*/false, /*has_work=*/false,
             /*asks=*/false);
  pulse.Answer();
  ExpectBeat(pulse.OnDue(), /*is_alive=*/true, /*has_work=*/false,
             /*asks=*/true);
}

// An owner like MachineDriver: it waits for events while it has the turn.
class Owner {
 public:
  Owner()
      : turn_([this] {
          MutexLock lock(&mu_);
          interrupted_ = true;
        }),
        thread_([this] { Run(); }) {}
  ~Owner() {
    turn_.Stop();
    thread_.join();
  }

  DrivingTurn& turn() { return turn_; }
  int turns() const { return turns_; }
  void AwaitTurns(int count) const {
    while (turns_ < count) absl::SleepFor(absl::Microseconds(20));
  }
  // A value that only the thread with the turn may touch. ThreadSanitizer
  // checks this too.
  int& shared() { return shared_; }

 private:
  void Run() {
    while (turn_.OwnerTakes()) {
      ++turns_;
      while (!turn_.wanted()) {
        ++shared_;
        --shared_;
        MutexLock lock(&mu_);
        mu_.Await([this] { return interrupted_; });
        interrupted_ = false;
      }
      turn_.OwnerGives();
    }
  }

  Mutex mu_;
  bool interrupted_ = false;
  std::atomic<int> turns_{0};
  int shared_ = 0;
  DrivingTurn turn_;
  std::thread thread_;
};

TEST(DrivingTurnTest, OwnerGivesTheTurnToAGuestAndTakesItBack) {
  Owner owner;
  for (int visit = 1; visit <= 20; ++visit) {
    owner.AwaitTurns(visit);
    ASSERT_TRUE(owner.turn().GuestTakes());
    EXPECT_TRUE(owner.turn().taken());
    EXPECT_FALSE(owner.turn().wanted());
    absl::SleepFor(2 * DrivingTurn::kGuestReturnMax);
    EXPECT_EQ(owner.turns(), visit);
    owner.turn().GuestGives();
  }
  owner.AwaitTurns(21);
}

TEST(DrivingTurnTest, OwnerTakesTheTurnBackAfterALongVisit) {
  Owner owner;
  owner.AwaitTurns(1);
  // The guest takes the turn twice in quick succession. It keeps the second
  // turn for longer than the owner yields.
  ASSERT_TRUE(owner.turn().GuestTakes());
  owner.turn().GuestGives();
  ASSERT_TRUE(owner.turn().GuestTakes());
  const int turns = owner.turns();
  absl::SleepFor(100 * DrivingTurn::kOwnerYield);
  EXPECT_EQ(owner.turns(), turns);
  owner.turn().GuestGives();
  owner.AwaitTurns(turns + 1);
}

TEST(DrivingTurnTest, SecondGuestIsRefusedTheTurn) {
  Owner owner;
  ASSERT_TRUE(owner.turn().GuestTakes());
  EXPECT_FALSE(owner.turn().GuestTakes());
  owner.turn().GuestGives();
  ASSERT_TRUE(owner.turn().GuestTakes());
  owner.turn().GuestGives();
}

TEST(DrivingTurnTest, NoGuestTakesTheTurnAfterStop) {
  Owner owner;
  owner.turn().Stop();
  EXPECT_FALSE(owner.turn().GuestTakes());
}

TEST(DrivingTurnTest, OnlyASingleThreadHasTheTurnUnderContention) {
  Owner owner;
  std::atomic<int> visits{0};
  std::vector<std::thread> guests;
  for (int guest = 0; guest < 3; ++guest) {
    guests.emplace_back([&, guest] {
      for (int i = 0; i < 2000; ++i) {
        if (!owner.turn().GuestTakes()) continue;
        EXPECT_EQ(owner.shared()++, 0);
        --owner.shared();
        ++visits;
        owner.turn().GuestGives();
        if (i % 100 == guest) absl::SleepFor(3 * DrivingTurn::kOwnerYield);
      }
    });
  }
  for (std::thread& guest : guests) guest.join();
  EXPECT_GT(visits, 0);
  while (!owner.turn().taken()) absl::SleepFor(absl::Microseconds(20));
}

const PeerId kA = PeerId::Worker(1);
const PeerId kB = PeerId::Worker(2);
const PeerId kC = PeerId::Shard(0);

absl::Time At(int seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

TrafficCount Count(PeerId peer, absl::Duration busy, int64_t bytes = 0) {
  TrafficCount count;
  count.peer = peer;
  count.busy = busy;
  count.bytes_sent = bytes;
  count.bytes_received = 2 * bytes;
  return count;
}

TEST(LinkWatchTest, FirstCallKnowsNoShare) {
  LinkWatch watch;
  Activity activity;
  watch.Measure({Count(kA, absl::Seconds(3), 10), Count(kB, {}, 5)}, At(0),
                activity);
  EXPECT_FALSE(activity.busiest.has_value());
  EXPECT_EQ(activity.bytes_sent, 15);
  EXPECT_EQ(activity.bytes_received, 30);
}

TEST(LinkWatchTest, FindsTheBusiestLinkSinceTheLastCall) {
  LinkWatch watch;
  Activity activity;
  watch.Measure(
      {Count(kA, absl::Seconds(3), 900), Count(kB, {}), Count(kC, {})}, At(0),
      activity);
  watch.Measure(
      {Count(kA, absl::Seconds(3.2), 1000), Count(kB, absl::Seconds(1), 100),
       Count(kC, absl::Milliseconds(500), 100)},
      At(2), activity);
  ASSERT_TRUE(activity.busiest.has_value());
  EXPECT_EQ(activity.busiest->peer, kB);
  EXPECT_DOUBLE_EQ(activity.busiest->share, 0.5);
  // The lower median of the other two.
  EXPECT_DOUBLE_EQ(activity.busiest->others.value(), 0.1);
}

TEST(LinkWatchTest, LinksWithLittleTrafficAreNotCompared) {
  LinkWatch watch;
  Activity activity;
  watch.Measure({Count(kA, {}), Count(kB, {})}, At(0), activity);
  watch.Measure({Count(kA, absl::Seconds(1), 100), Count(kB, {}, 20)}, At(2),
                activity);
  ASSERT_TRUE(activity.busiest.has_value());
  EXPECT_EQ(activity.busiest->peer, kA);
  EXPECT_FALSE(activity.busiest->others.has_value());
}

// Links that are quiet, as the busiest one is, say nothing about it.
TEST(LinkWatchTest, LinksAreNotComparedWithOneThatHasSentNothing) {
  LinkWatch watch;
  Activity activity;
  watch.Measure({Count(kA, {}), Count(kB, {})}, At(0), activity);
  watch.Measure({Count(kA, absl::Seconds(2)), Count(kB, {})}, At(2), activity);
  ASSERT_TRUE(activity.busiest.has_value());
  EXPECT_EQ(activity.busiest->peer, kA);
  EXPECT_FALSE(activity.busiest->others.has_value());
}

TEST(LinkWatchTest, SharedMemoryIsNoLink) {
  LinkWatch watch;
  Activity activity;
  TrafficCount memory = Count(kA, {}, 50);
  memory.busy.reset();
  watch.Measure({memory}, At(0), activity);
  watch.Measure({memory}, At(2), activity);
  EXPECT_FALSE(activity.busiest.has_value());
  EXPECT_EQ(activity.bytes_sent, 50);
}

// A new connection counts from zero.
TEST(LinkWatchTest, ShareIsFromZeroToOne) {
  for (const auto& [before, after, share] :
       {std::tuple{3, 1, 0.0}, std::tuple{0, 9, 1.0}}) {
    LinkWatch watch;
    Activity activity;
    watch.Measure({Count(kA, absl::Seconds(before))}, At(0), activity);
    watch.Measure({Count(kA, absl::Seconds(after))}, At(2), activity);
    ASSERT_TRUE(activity.busiest.has_value());
    EXPECT_DOUBLE_EQ(activity.busiest->share, share);
  }
}

}  // namespace
}  // namespace nereus
