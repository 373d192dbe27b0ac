// Feeds hostile frames to the machines that receive frames. Each test runs for
// two seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/frame_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/protocol/frame.h"
#include "server/shard/shard.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/mutation.h"
#include "worker/machine/worker_machine.h"

namespace nereus {
namespace {

constexpr int kWorkers = 3;
constexpr int64_t kLarge = 65536 + 7;

// Layer 0 goes through the servers in two frames, layer 1 by factors.
JobPtr FuzzedJob(bool deterministic) {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.0f;
  options.deterministic = deterministic;
  options.checkpoint_every = 2;
  return TestJob(
      kWorkers, 1,
      {VectorLayer("large", kLarge), FactorLayer("fc", 2, 3, true, 4)}, options,
      Scheme::kFactor);
}

// Returns the same job with backups: server 1 keeps the copy of shard 0.
JobPtr CopiedJob(Random& random) {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.rule =
      random.Chance(0.5) ? UpdateRule::kSgd : UpdateRule::kAdam;
  options.optimizer_place =
      random.Chance(0.5) ? OptimizerPlace::kServer : OptimizerPlace::kWorker;
  options.deterministic = random.Chance(0.5);
  options.checkpoint_every = 2;
  options.backup = true;
  // Layer "other" gives shard 1 chunks too.
  return TestJob(
      kWorkers, 2,
      {VectorLayer("large", kLarge), FactorLayer("fc", 2, 3, true, 4),
       VectorLayer("other", kLarge)},
      options, Scheme::kFactor);
}

// Returns any member that may send frames: a worker or leaver of this epoch, or
// shard 0.
PeerId AnySender(Random& random, const Job& job) {
  if (random.Chance(0.3)) return PeerId::Shard(0);
  const auto all = static_cast<uint64_t>(job.worker_count()) +
                   static_cast<uint64_t>(job.crew.left_workers.size());
  const uint64_t index = random.Below(all);
  if (index < job.workers.size()) {
    return PeerId::Worker(job.workers[index].rank);
  }
  return PeerId::Worker(job.crew.left_workers[index - job.workers.size()]);
}

FrameKind AnyKind(Random& random, PeerId sender) {
  if (sender.role == Role::kShard) return FrameKind::kResult;
  constexpr FrameKind kKinds[] = {
      FrameKind::kContribution, FrameKind::kContribution, FrameKind::kFactors,
      FrameKind::kFactors,      FrameKind::kPull,         FrameKind::kResult,
      FrameKind::kPullRound,    FrameKind::kOwned,        FrameKind::kOwned,
      FrameKind::kFinished};
  return kKinds[random.Below(std::size(kKinds))];
}

// Returns a mutated header of a frame that this job could see.
FrameHeader MutatedHeader(Random& random, const Job& job) {
  const PeerId sender = AnySender(random, job);
  const FrameKind kind = AnyKind(random, sender);
  const bool factors = kind == FrameKind::kFactors ||
                       kind == FrameKind::kPullRound ||
                       kind == FrameKind::kFinished;
  const bool by_factors = factors || random.Chance(0.2);
  FrameHeader header = MakeHeader(job, sender, kind, by_factors ? 1 : 0, 0,
                                  static_cast<int64_t>(random.Below(4)) - 1);
  if (kind == FrameKind::kFactors) {
    header.chunk = static_cast<uint32_t>(job.PositionOf(sender.rank));
    header.part = static_cast<uint8_t>(random.Below(2));
    header.payload_bytes = header.part == kOutputGradientMatrix ? 32 : 48;
  } else if (kind == FrameKind::kOwned || kind == FrameKind::kFinished) {
    header.layer = 1;
    header.part = static_cast<uint8_t>(random.Below(2));
    header.payload_bytes = 32;
  } else if (kind == FrameKind::kContribution || kind == FrameKind::kResult) {
    header.payload_bytes = by_factors ? 32 : kFramePayloadBytesMax;
    if (!by_factors && random.Chance(0.5)) {
      header.offset = 65536;
      header.payload_bytes = 28;
    }
  }
  if (kind != FrameKind::kPull && kind != FrameKind::kPullRound) {
    header.wire = WireType::kFloat32;
  }
  MutateHeader(random, header);
  return header;
}

// A machine under test, and the peer at the other end of its connection.
struct Target {
  Machine* machine;
  PeerId from;
};

// Checks the limits of each header that a machine has accepted.
void CheckAccepted(const Job& job, const FrameHeader& header,
                   const Landing& landing) {
  ASSERT_EQ(header.job, job.id);
  ASSERT_EQ(header.epoch, job.epoch);
  ASSERT_LT(header.layer, job.layers.size());
  ASSERT_GE(header.round, kInitialRound);
  ASSERT_LT(header.offset, kLarge);
  ASSERT_LE(header.payload_bytes, kFramePayloadBytesMax);
  if (landing.kind == Landing::Kind::kPlace) {
    ASSERT_EQ(landing.place.bytes(), header.payload_bytes);
    ASSERT_NE(landing.place.data(), nullptr);
  }
}

// Random bytes and flipped bits: the decoder never reads beyond the 64 bytes.
// An accepted header is encoded to the same bytes.
TEST(FrameFuzzTest, DecodedHeadersAreEncodedToTheSameBytes) {
  const JobPtr job = FuzzedJob(false);
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 1000; ++i) {
      std::string bytes(kFrameHeaderBytes, '\0');
      EncodeFrameHeader(MutatedHeader(random, *job),
                        reinterpret_cast<uint8_t*>(bytes.data()));
      if (random.Chance(0.1)) bytes = RandomBytes(random, kFrameHeaderBytes);
      Mutate(random, bytes);
      if (bytes.size() == kFrameHeaderBytes && random.Chance(0.8)) {
        const uint32_t crc = Crc32c(bytes.data(), 60);
        std::memcpy(bytes.data() + 60, &crc, sizeof(crc));
      }
      // The memory has exactly this size, so that a sanitizer detects reads
      // beyond it.
      const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
      const auto header = DecodeFrameHeader(exact);
      if (!header.ok()) {
        ASSERT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
        ASSERT_FALSE(header.status().message().empty());
        continue;
      }
      ++accepted;
      ASSERT_LE(header->payload_bytes, kFramePayloadBytesMax);
      ASSERT_LT(header->sender.rank, kRanksMax);
      ASSERT_GE(header->sender.rank, 0);
      std::vector<uint8_t> again(kFrameHeaderBytes, 0xee);
      EncodeFrameHeader(*header, again.data());
      ASSERT_EQ(again, exact);
      ASSERT_FALSE(DescribeFrame(*header).empty());
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

// Announces many mutated headers to a machine, without their payloads. An
// announcement must not change the machine's state.
void AnnounceMany(Random& random, const Job& job, const Target& target) {
  for (int i = 0; i < 300; ++i) {
    FrameHeader header = MutatedHeader(random, job);
    if (random.Chance(0.9)) header.sender = target.from;
    const auto landing = target.machine->OnHeader(target.from, header);
    if (landing.ok()) {
      ASSERT_EQ(header.sender, target.from);
      CheckAccepted(job, header, *landing);
    } else {
      ASSERT_EQ(landing.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(landing.status().message().empty());
    }
  }
}

std::vector<float> Gradient(int worker, int64_t round) {
  return IntegerValues(kLarge, worker * 100 + round);
}

// Plays rounds of a shard with hostile headers between all frames, and with
// accepted frames out of turn. The results must be those of a quiet network.
TEST(FrameFuzzTest, ShardRoundsSurviveHostileHeaders) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    const JobPtr job = FuzzedJob(random.Chance(0.5));
    Shard shard(job, 0);
    std::vector<float> parameters = IntegerValues(kLarge, 1);
    const auto announce = [&] {
      const auto from = static_cast<int>(random.Below(kWorkers + 1));
      AnnounceMany(
          random, *job,
          {&shard, from < kWorkers ? PeerId::Worker(from) : PeerId::Shard(0)});
    };
    announce();
    DeliverAll(shard, PeerId::Worker(0),
               FramesOf(*job, PeerId::Worker(0), FrameKind::kContribution, 0, 0,
                        kInitialRound, parameters));
    for (int64_t round = 0; round < 2; ++round) {
      std::vector<Frame> frames;
      std::vector<float> sum(kLarge, 0.0f);
      for (int worker = 0; worker < kWorkers; ++worker) {
        const auto gradient = Gradient(worker, round);
        for (int64_t i = 0; i < kLarge; ++i) sum[i] += gradient[i];
        for (Frame& frame :
             FramesOf(*job, PeerId::Worker(worker), FrameKind::kContribution, 0,
                      0, round, gradient)) {
          frames.push_back(frame);
          if (random.Chance(0.3)) frames.push_back(std::move(frame));
        }
      }
      for (size_t i = frames.size() - 1; i > 0; --i) {
        std::swap(frames[i], frames[random.Below(i + 1)]);
      }
      for (const Frame& frame : frames) {
        announce();
        ASSERT_FALSE(HasFatalFailure());
        DeliverAll(shard, frame.header.sender, {frame});
      }
      for (int64_t i = 0; i < kLarge; ++i) {
        // The optimizer computes g = scale * sum, v = g, p - v.
        parameters[i] = parameters[i] - job->MeanScale(round) * sum[i];
      }
      ASSERT_EQ(FloatsOf(shard.chunk(0, 0).held().parameters), parameters);
    }
  }
}

// A shard handles all frames that it accepts, in any order. The sums are
// meaningless then, but memory and bookkeeping must be right.
TEST(FrameFuzzTest, ShardHandlesAllAcceptedFrames) {
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    const JobPtr job = FuzzedJob(random.Chance(0.5));
    Shard shard(job, 0);
    for (int i = 0; i < 300; ++i) {
      const FrameHeader header = MutatedHeader(random, *job);
      if (header.payload_bytes > kFramePayloadBytesMax) continue;
      const Frame frame{header, Buffer::AllocateZeroed(header.payload_bytes)};
      const auto delivery = Deliver(shard, header.sender, frame);
      if (!delivery.ok()) continue;
      ++accepted;
      for (const auto& sent : delivery->effects.sent) {
        ASSERT_EQ(sent.frame.header.kind, FrameKind::kResult);
        ASSERT_EQ(sent.frame.header.payload_bytes, sent.frame.payload.bytes());
      }
      ASSERT_LE(shard.stored_bytes(), (kLarge * 2 + 8) * 4);
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

struct FuzzedWorker {
  explicit FuzzedWorker(JobPtr job)
      : parameters{Buffer::AllocateZeroed(kLarge * 4),
                   Buffer::AllocateZeroed(8 * 4)},
        machine(std::move(job), 1,
                {{parameters[0], Buffer()}, {parameters[1], Buffer()}}) {
    Outbox out;
    machine.Start(out);
    Carry(out);
  }
  std::vector<Buffer> parameters;
  WorkerMachine machine;
};

// A worker handles all frames that it accepts, although results land in place.
TEST(FrameFuzzTest, WorkerRoundsSurviveHostileHeaders) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    const JobPtr job = FuzzedJob(false);
    FuzzedWorker worker(job);
    const auto receive = [&](const std::vector<Frame>& frames) {
      for (const Frame& frame : frames) {
        const auto from = static_cast<int>(random.Below(kWorkers + 1));
        AnnounceMany(random, *job,
                     {&worker.machine, from < kWorkers ? PeerId::Worker(from)
                                                       : PeerId::Shard(0)});
        ASSERT_FALSE(HasFatalFailure());
        DeliverAll(worker.machine, frame.header.sender, {frame});
      }
    };
    const PeerId shard = PeerId::Shard(0);
    receive(FramesOf(*job, shard, FrameKind::kResult, 0, 0, kInitialRound,
                     IntegerValues(kLarge, 1)));
    receive(FramesOf(*job, shard, FrameKind::kResult, 1, 0, kInitialRound,
                     IntegerValues(8, 1)));
    ASSERT_EQ(FloatsOf(worker.parameters[0]), IntegerValues(kLarge, 1));
    ASSERT_EQ(FloatsOf(worker.parameters[1]), IntegerValues(8, 1));
    Outbox out;
    for (int64_t round = 0; round < 2; ++round) {
      ASSERT_TRUE(
          worker.machine.OnPush(0, round, FloatBuffer(Gradient(1, round)), out)
              .ok());
      Carry(out);
      const auto result = IntegerValues(kLarge, 50 + round);
      receive(FramesOf(*job, shard, FrameKind::kResult, 0, 0, round, result));
      ASSERT_EQ(FloatsOf(worker.parameters[0]), result);
      ASSERT_EQ(worker.machine.syncer(0).done_round(), round);
    }
    // The product of these factors is known: ones give 3 * 4 rows of 1, scaled
    // by 1/3: 4.
    ASSERT_TRUE(
        worker.machine
            .OnPushFactors(1, 0,
                           {FloatBuffer(std::vector<float>(8, 1)),
                            FloatBuffer(std::vector<float>(12, 1)), Buffer()},
                           out)
            .ok());
    Carry(out);
    for (const int peer : {2, 0}) {
      const PeerId from = PeerId::Worker(peer);
      receive(FramesOf(*job, from, FrameKind::kFactors, 1, peer, 0,
                       std::vector<float>(12, 1), kInputMatrix));
      receive(FramesOf(*job, from, FrameKind::kFactors, 1, peer, 0,
                       std::vector<float>(8, 1), kOutputGradientMatrix));
    }
    const auto before = IntegerValues(8, 1);
    for (size_t i = 0; i < before.size(); ++i) {
      // The sum is 12 times 1/3, with at most one rounding in each of 12
      // additions.
      ASSERT_NEAR(worker.parameters[1].floats()[i], before[i] - 4, 1e-4);
    }
  }
}

TEST(FrameFuzzTest, WorkerHandlesAllAcceptedFrames) {
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    const JobPtr job = FuzzedJob(false);
    FuzzedWorker worker(job);
    for (int i = 0; i < 300; ++i) {
      const FrameHeader header = MutatedHeader(random, *job);
      if (header.payload_bytes > kFramePayloadBytesMax) continue;
      const Frame frame{header, Buffer::AllocateZeroed(header.payload_bytes)};
      const auto delivery = Deliver(worker.machine, header.sender, frame);
      if (delivery.ok()) ++accepted;
    }
    for (const int layer : {0, 1}) {
      ASSERT_LE(worker.machine.syncer(layer).done_round(), kInitialRound);
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

// Returns an epoch that may follow `job`, as far as one machine can tell.
// Worker 0 always stays; ranks from kWorkers on belong to joiners.
JobPtr RandomEpoch(Random& random, const Job& job) {
  return EpochAfter(job, [&](Job& next) {
    std::vector<EpochWorker> stay;
    for (const EpochWorker& each : next.workers) {
      if (each.rank == 0 || random.Chance(0.8)) {
        stay.push_back(each);
      } else if (random.Chance(0.5)) {
        next.crew.left_workers.push_back(each.rank);
        absl::c_sort(next.crew.left_workers);
      }
    }
    const int last =
        std::max(job.workers.back().rank,
                 job.crew.left_workers.empty()
                     ? 0
                     : *absl::c_max_element(job.crew.left_workers));
    next.history.first_step += static_cast<int64_t>(random.Below(2));
    next.workers = stay;
    if (random.Chance(0.5)) {
      next.workers.push_back({last + 1, next.history.first_step});
    }
    next.history.donor = random.Chance(0.5) ? 0 : next.workers.back().rank;
    next.history.finished_rounds.clear();
    if (random.Chance(0.5)) {
      const auto holder = next.workers[random.Below(next.workers.size())].rank;
      next.history.finished_rounds.push_back(
          {1, static_cast<int64_t>(random.Below(4)), holder,
           1 + static_cast<int32_t>(random.Below(5))});
    }
  });
}

// Announces mutated frames to the machine, and delivers those that it accepts.
void DeliverMany(Random& random, const Job& job, Machine& machine,
                 uint64_t* accepted) {
  for (int i = 0; i < 30; ++i) {
    const FrameHeader header = MutatedHeader(random, job);
    if (header.payload_bytes > kFramePayloadBytesMax) continue;
    const Frame frame{header, Buffer::AllocateZeroed(header.payload_bytes)};
    if (Deliver(machine, header.sender, frame).ok()) ++*accepted;
  }
}

TEST(FrameFuzzTest, ShardHandlesEpochsAndAllAcceptedFrames) {
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    JobPtr job = FuzzedJob(random.Chance(0.5));
    Shard shard(job, 0);
    for (int epoch = 0; epoch < 8; ++epoch) {
      DeliverMany(random, *job, shard, &accepted);
      shard.Freeze();
      ASSERT_GE(shard.closed_round(), kInitialRound);
      job = RandomEpoch(random, *job);
      Outbox out;
      shard.OnEpoch(job, out);
      Carry(out);
      ASSERT_LE(shard.stored_bytes(), (kLarge * 2 + 8) * 4);
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

// Returns a mutated header of the kinds that a primary and its backup exchange.
FrameHeader MutatedCopyHeader(Random& random, const Job& job, PeerId sender) {
  constexpr FrameKind kKinds[] = {FrameKind::kAggregate, FrameKind::kCopy,
                                  FrameKind::kHave};
  const FrameKind kind = kKinds[random.Below(std::size(kKinds))];
  const bool by_factors = random.Chance(0.2);
  FrameHeader header = MakeHeader(job, sender, kind, by_factors ? 1 : 0, 0,
                                  static_cast<int64_t>(random.Below(5)) - 1);
  if (kind != FrameKind::kHave) {
    header.wire = WireType::kFloat32;
    header.payload_bytes = by_factors ? 32 : kFramePayloadBytesMax;
    if (!by_factors && random.Chance(0.5)) {
      header.offset = 65536;
      header.payload_bytes = 28;
    }
    if (kind == FrameKind::kCopy) {
      header.part = static_cast<uint8_t>(random.Below(4));
    }
  }
  if (random.Chance(0.3)) MutateHeader(random, header);
  return header;
}

// Shard 0 on servers 0 and 1. Each receives frames of the other server and
// forged frames.
class FuzzedPair {
 public:
  explicit FuzzedPair(Random& random)
      : random_(random), job_(CopiedJob(random)) {
    for (const int rank : {0, 1}) Make(rank);
  }
  void Step(uint64_t* accepted) {
    const auto rank = static_cast<int>(random_.Below(2));
    if (!shards_[rank].has_value()) return;
    if (random_.Chance(0.5)) return DeliverOne(rank, accepted);
    const PeerId other = PeerId::Shard(1 - rank);
    const FrameHeader header = random_.Chance(0.6)
                                   ? MutatedCopyHeader(random_, *job_, other)
                                   : MutatedHeader(random_, *job_);
    if (header.payload_bytes > kFramePayloadBytesMax) return;
    Arrive(rank, {header, Buffer::AllocateZeroed(header.payload_bytes)},
           accepted);
  }
  void NextEpoch() {
    job_ = EpochAfter(*RandomEpoch(random_, *job_), [&](Job& next) {
      const auto server = static_cast<int32_t>(random_.Below(2));
      const bool copied = random_.Chance(0.8);
      next.shard_servers[0] = {server, copied ? 1 - server : -1,
                               copied && random_.Chance(0.5)};
    });
    for (const int rank : {0, 1}) {
      wire_[rank].clear();
      const ShardServers& servers = job_->shard_servers[0];
      if (rank != servers.primary && rank != servers.backup) {
        shards_[rank].reset();
      } else if (!shards_[rank].has_value()) {
        Make(rank);
      } else {
        Outbox out;
        shards_[rank]->OnEpoch(job_, out);
        Take(Carry(out));
      }
    }
  }

 private:
  void Make(int rank) {
    Outbox out;
    shards_[rank].emplace(job_, 0, PeerId::Shard(rank));
    shards_[rank]->Start(out);
    Take(Carry(out));
  }
  void DeliverOne(int rank, uint64_t* accepted) {
    if (wire_[rank].empty()) return;
    const Frame frame = wire_[rank].front();
    wire_[rank].erase(wire_[rank].begin());
    Arrive(rank, frame, accepted);
  }
  void Arrive(int rank, const Frame& frame, uint64_t* accepted) {
    const auto delivery = Deliver(*shards_[rank], frame.header.sender, frame);
    if (!delivery.ok()) {
      ASSERT_EQ(delivery.status().code(), absl::StatusCode::kInvalidArgument);
      return;
    }
    ++*accepted;
    Take(delivery->effects);
    ASSERT_GE(shards_[rank]->closed_round(), kInitialRound);
    ASSERT_LE(shards_[rank]->stored_bytes(), (kLarge + 8) * 3 * 4);
    shards_[rank]->has_current_backup();
    shards_[rank]->oldest_open_round();
  }
  void Take(const Effects& effects) {
    for (const Effects::Sent& sent : effects.sent) {
      const FrameHeader& header = sent.frame.header;
      ASSERT_EQ(header.payload_bytes, sent.frame.payload.bytes());
      ASSERT_GE(header.round, kInitialRound);
      if (!sent.to.has_value() || sent.to->role == Role::kWorker) {
        ASSERT_EQ(header.kind, FrameKind::kResult);
        continue;
      }
      ASSERT_NE(*sent.to, header.sender);
      wire_[sent.to->rank].push_back(sent.frame);
    }
  }

  Random& random_;
  JobPtr job_;
  std::optional<Shard> shards_[2];  // Shards by the rank of their server.
  // Frames under way, by the rank of the receiver.
  std::vector<Frame> wire_[2];
};

TEST(FrameFuzzTest, PrimaryAndBackupHandleEpochsAndAllAcceptedFrames) {
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    FuzzedPair pair(random);
    for (int epoch = 0; epoch < 6; ++epoch) {
      for (int i = 0; i < 60; ++i) {
        pair.Step(&accepted);
        ASSERT_FALSE(HasFatalFailure());
      }
      pair.NextEpoch();
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

// Worker 1 passes through all states: it joins late or not, owns layers, holds
// results, falls behind, and leaves.
TEST(FrameFuzzTest, WorkerHandlesEpochsAndAllAcceptedFrames) {
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    JobPtr job = FuzzedJob(false);
    if (random.Chance(0.3)) {
      job = EpochAfter(*job, [](Job& late) {
        late.workers = {{0, 0}, {1, 2}};
        late.history.first_step = 2;
        late.history.donor = 0;
      });
    }
    FuzzedWorker worker(job);
    const auto member = [&] {
      return job->PositionOf(1) >= 0 ||
             absl::c_count(job->crew.left_workers, 1) > 0;
    };
    for (int epoch = 0; epoch < 8 && member(); ++epoch) {
      for (int i = 0; i < 3; ++i) {
        DeliverMany(random, *job, worker.machine, &accepted);
        if (job->PositionOf(1) < 0) continue;
        for (const int layer : {0, 1}) {
          const int64_t round = worker.machine.syncer(layer).done_round() + 1;
          Outbox out;
          worker.machine.BeginStep(round, out);
          // A push may be refused while the worker waits for a round or fetches
          // values.
          absl::Status status;
          if (layer == 0) {
            status = worker.machine.OnPush(
                0, round, Buffer::AllocateZeroed(kLarge * 4), out);
          } else {
            status = worker.machine.OnPushFactors(
                1, round,
                {Buffer::AllocateZeroed(32), Buffer::AllocateZeroed(48),
                 Buffer()},
                out);
          }
          Carry(out);
          ASSERT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
        }
      }
      worker.machine.Freeze();
      DeliverMany(random, *job, worker.machine, &accepted);
      ASSERT_GE(worker.machine.Report().begun_step, kInitialRound);
      job = RandomEpoch(random, *job);
      if (!member()) break;
      Outbox out;
      worker.machine.OnEpoch(job, out);
      Carry(out);
      for (const int layer : {0, 1}) worker.machine.syncer(layer).Missing();
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

}  // namespace
}  // namespace nereus
