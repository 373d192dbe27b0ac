#include "worker/machine/factor_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/compute/factor_gradient.h"
#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_under_test.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kRows = 4;
constexpr int64_t kM = 3;
constexpr int64_t kN = 5;

JobPtr FactorJob(int workers, OptimizerPlace place = OptimizerPlace::kServer,
                 bool bias = true) {
  return TestJob(workers, 1, {FactorLayer("fc", kM, kN, bias, kRows)},
                 PlainSgd(place), Scheme::kFactor);
}

// Factors that a worker contributes to a round.
std::vector<float> OutputGradient(int worker, int64_t round) {
  return IntegerValues(kRows * kM, worker * 10 + round);
}
std::vector<float> Input(int worker, int64_t round) {
  return IntegerValues(kRows * kN, worker * 10 + round + 5);
}

std::vector<Frame> FactorFrames(const Job& job, int worker, int64_t round) {
  const PeerId peer = PeerId::Worker(worker);
  std::vector<Frame> frames =
      FramesOf(job, peer, FrameKind::kFactors, 0, /*chunk=*/worker, round,
               OutputGradient(worker, round), kOutputGradientMatrix);
  for (Frame& frame : FramesOf(job, peer, FrameKind::kFactors, 0, worker, round,
                               Input(worker, round), kInputMatrix)) {
    frames.push_back(std::move(frame));
  }
  return frames;
}

// Returns the product over the rows of all workers, stacked by position.
std::vector<float> MeanGradient(const Job& job, int64_t round) {
  std::vector<float> output_gradient;
  std::vector<float> input;
  for (int worker = 0; worker < job.worker_count(); ++worker) {
    for (const float value : OutputGradient(worker, round)) {
      output_gradient.push_back(value);
    }
    for (const float value : Input(worker, round)) input.push_back(value);
  }
  const LayerSpec& layer = job.layers[0];
  std::vector<float> gradient(layer.parameters);
  FactorGradient(job.worker_count() * kRows, kM, kN, layer.parameters > kM * kN,
                 job.MeanScale(round), output_gradient.data(), input.data(),
                 gradient.data());
  return gradient;
}

// Worker of a job, after it has got its first values.
struct FactorWorker : WorkerUnderTest {
  FactorWorker(JobPtr made, int rank) : WorkerUnderTest(std::move(made), rank) {
    Start();
    ReceiveResults(kInitialRound, IntegerValues(elements(), 0));
  }

  // Pushes the worker's factors of a round.
  Effects PushOwn(int64_t round, Buffer gradient = Buffer()) {
    return PushFactors(
        round, {FloatBuffer(OutputGradient(rank(), round)),
                FloatBuffer(Input(rank(), round)), std::move(gradient)});
  }
  Effects Receive(int worker, int64_t round) {
    return DeliverAll(machine(), PeerId::Worker(worker),
                      FactorFrames(*job(), worker, round));
  }
  absl::StatusOr<Landing> Announce(int worker, const FrameHeader& header) {
    return machine().OnHeader(PeerId::Worker(worker), header);
  }
};

// Returns the parameters after `rounds` rounds.
std::vector<float> ParametersAfter(const Job& job, int64_t rounds) {
  std::vector<float> parameters = IntegerValues(job.layers[0].parameters, 0);
  for (int64_t round = 0; round < rounds; ++round) {
    const auto gradient = MeanGradient(job, round);
    for (size_t i = 0; i < gradient.size(); ++i) parameters[i] -= gradient[i];
  }
  return parameters;
}

TEST(FactorExchangeTest, SendsBothMatricesToAllOthers) {
  FactorWorker worker(FactorJob(3), 1);
  const Effects effects = worker.PushOwn(0);
  ASSERT_EQ(effects.sent.size(), 2u);
  for (const auto& sent : effects.sent) {
    EXPECT_EQ(sent.to, std::nullopt);
    EXPECT_THAT(sent.workers, ElementsAre(0, 2));
    EXPECT_TRUE(
        CheckFrame(*worker.job(), PeerId::Worker(1), sent.frame.header).ok());
  }
  EXPECT_EQ(ValuesIn(effects.sent, FrameKind::kFactors, 0, /*chunk=*/1, 0,
                     kRows * kM, kOutputGradientMatrix),
            OutputGradient(1, 0));
  EXPECT_EQ(ValuesIn(effects.sent, FrameKind::kFactors, 0, 1, 0, kRows * kN,
                     kInputMatrix),
            Input(1, 0));
}

struct ProductCase {
  const char* name;
  int workers = 4;
  bool bias = true;
  bool own_last = false;  // The own factors come after those of all peers.
};

class FactorProductTest : public testing::TestWithParam<ProductCase> {};

TEST_P(FactorProductTest, TakesAllRowsInTheOrderOfPositions) {
  const auto& [name, workers, bias, own_last] = GetParam();
  const JobPtr job = FactorJob(workers, OptimizerPlace::kServer, bias);
  for (int rank = 0; rank < workers; ++rank) {
    FactorWorker worker(job, rank);
    for (int64_t round = 0; round < 4; ++round) {
      Effects last;
      if (!own_last) last = worker.PushOwn(round);
      for (int peer = workers - 1; peer >= 0; --peer) {
        if (peer == rank) continue;
        EXPECT_THAT(last.done, IsEmpty());
        last = worker.Receive(peer, round);
      }
      if (own_last) last = worker.PushOwn(round);
      ASSERT_EQ(last.done.size(), 1u);
      EXPECT_EQ(last.done[0].round, round);
      EXPECT_EQ(worker.syncer().done_round(), round);
      EXPECT_EQ(FloatsOf(worker.parameters()),
                ParametersAfter(*job, round + 1));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FactorProductTest,
    testing::Values(ProductCase{.name = "FourWorkers"},
                    ProductCase{.name = "WithoutBias", .bias = false},
                    ProductCase{.name = "OwnFactorsLast", .own_last = true},
                    ProductCase{.name = "OneWorker", .workers = 1}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(FactorExchangeTest, FramesWithTheOwnFactorsAreDiscarded) {
  FactorWorker worker(FactorJob(3), 1);
  const auto landing =
      worker.Announce(1, FactorFrames(*worker.job(), 1, 0)[0].header);
  ASSERT_TRUE(landing.ok()) << landing.status();
  EXPECT_EQ(landing->kind, Landing::Kind::kDiscard);
}

TEST(FactorExchangeTest, TheCallersOptimizerGetsTheMeanInTheGradient) {
  FactorWorker worker(FactorJob(2, OptimizerPlace::kWorker), 0);
  for (int64_t round = 0; round < 3; ++round) {
    const int64_t elements = worker.elements();
    const Buffer gradient = FloatBuffer(std::vector<float>(elements, 99.0f));
    worker.PushOwn(round, gradient);
    EXPECT_EQ(worker.Receive(1, round).done.size(), 1u);
    EXPECT_EQ(FloatsOf(gradient), MeanGradient(*worker.job(), round));
    EXPECT_TRUE(gradient.unique());  // The machine has let go of it.
    EXPECT_EQ(FloatsOf(worker.parameters()), IntegerValues(elements, 0));
  }
}

TEST(FactorExchangeTest, TheCallersFactorsAreFreeWhenTheRoundIsDone) {
  FactorWorker worker(FactorJob(2), 0);
  const Buffer output_gradient = FloatBuffer(OutputGradient(0, 0));
  const Buffer input = FloatBuffer(Input(0, 0));
  Outbox out;
  ASSERT_TRUE(worker.machine()
                  .OnPushFactors(0, 0, {output_gradient, input, Buffer()}, out)
                  .ok());
  const Effects held = Carry(out);
  // The machine keeps them, to contribute them again in the next epoch.
  EXPECT_FALSE(output_gradient.unique());
  EXPECT_FALSE(input.unique());
  worker.Receive(1, 0);
  EXPECT_TRUE(output_gradient.unique());
  EXPECT_TRUE(input.unique());
}

TEST(FactorExchangeTest, MissingNamesThePeers) {
  const JobPtr job = FactorJob(4);
  WorkerMachine fresh(
      job, 0,
      {{Buffer::AllocateZeroed(job->layers[0].parameters * 4), Buffer()}});
  Outbox out;
  fresh.Start(out);
  EXPECT_EQ(fresh.syncer(0).Missing(), "shard 0 (chunk 0)");

  FactorWorker worker(job, 1);
  worker.PushOwn(0);
  EXPECT_EQ(worker.syncer().Missing(), "worker 0, worker 2, worker 3");
  worker.Receive(2, 0);
  DeliverAll(worker.machine(), PeerId::Worker(0),
             {FactorFrames(*job, 0, 0)[0]});  // Its first factor only.
  EXPECT_EQ(worker.syncer().Missing(), "worker 0, worker 3");
}

// A gradient of a step with more rows than the factors have room for.
std::vector<float> DenseGradient(const Job& job, int worker, int64_t round) {
  return IntegerValues(job.layers[0].parameters, worker * 100 + round);
}

std::vector<Frame> DenseFrames(const Job& job, int worker, int64_t round) {
  return FramesOf(job, PeerId::Worker(worker), FrameKind::kFactors, 0,
                  /*chunk=*/worker, round, DenseGradient(job, worker, round),
                  kDensePart);
}

// Returns the mean if the workers in `dense` push dense gradients.
std::vector<float> MeanWithDense(const Job& job, int64_t round,
                                 const std::vector<int>& dense) {
  std::vector<float> output_gradient;
  std::vector<float> input;
  std::vector<float> sum(job.layers[0].parameters);
  for (int worker = 0; worker < job.worker_count(); ++worker) {
    const bool is_dense = absl::c_linear_search(dense, worker);
    for (const float value : OutputGradient(worker, round)) {
      output_gradient.push_back(is_dense ? 0.0f : value);
    }
    for (const float value : Input(worker, round)) {
      input.push_back(is_dense ? 0.0f : value);
    }
    if (!is_dense) continue;
    const std::vector<float> gradient = DenseGradient(job, worker, round);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
  std::vector<float> mean(sum.size());
  FactorGradient(job.worker_count() * kRows, kM, kN, mean.size() > kM * kN,
                 1.0f, output_gradient.data(), input.data(), mean.data());
  for (size_t i = 0; i < sum.size(); ++i) {
    mean[i] = (mean[i] + sum[i]) * job.MeanScale(round);
  }
  return mean;
}

TEST(FactorExchangeTest, ADenseGradientGoesInPlaceOfFactors) {
  FactorWorker worker(FactorJob(3, OptimizerPlace::kWorker), 1);
  for (int64_t round = 0; round < 3; ++round) {
    const Buffer gradient = FloatBuffer(DenseGradient(*worker.job(), 1, round));
    const Effects effects = worker.Push(round, gradient);
    ASSERT_EQ(effects.sent.size(), 1u);
    EXPECT_EQ(effects.sent[0].frame.header.kind, FrameKind::kFactors);
    EXPECT_EQ(effects.sent[0].frame.header.part, kDensePart);
    EXPECT_EQ(effects.sent[0].frame.header.chunk, 1u);
    EXPECT_TRUE(effects.sent[0].IsFor(PeerId::Worker(0)));
    EXPECT_TRUE(effects.sent[0].IsFor(PeerId::Worker(2)));
    worker.Receive(0, round);
    EXPECT_EQ(worker.syncer().Missing(), "worker 2");
    EXPECT_EQ(worker.Receive(2, round).done.size(), 1u);
    EXPECT_EQ(FloatsOf(gradient), MeanWithDense(*worker.job(), round, {1}));
    // The frame has the values that were pushed.
    EXPECT_EQ(FloatsOf(effects.sent[0].frame.payload),
              DenseGradient(*worker.job(), 1, round));
  }
}

TEST(FactorExchangeTest, MeanOfADenseGradientGoesWhereTheCallerSays) {
  FactorWorker worker(FactorJob(2, OptimizerPlace::kWorker), 0);
  const Buffer gradient = FloatBuffer(DenseGradient(*worker.job(), 0, 0));
  const Buffer mean = Buffer::AllocateZeroed(gradient.bytes());
  Outbox out;
  ASSERT_TRUE(worker.machine()
                  .OnPush(0, 0, gradient, out, /*fit=*/true, 1.0f, mean)
                  .ok());
  Carry(out);
  worker.Receive(1, 0);
  EXPECT_EQ(FloatsOf(gradient), DenseGradient(*worker.job(), 0, 0));
  EXPECT_EQ(FloatsOf(mean), MeanWithDense(*worker.job(), 0, {0}));
  EXPECT_TRUE(gradient.unique());
  EXPECT_TRUE(mean.unique());
}

TEST(FactorExchangeTest, ADenseGradientOfSeveralFramesIsAssembled) {
  // 75,300 values: a frame and a part of one.
  const JobPtr job =
      TestJob(2, 1, {FactorLayer("fc", 300, 250, true, 2)},
              PlainSgd(OptimizerPlace::kWorker), Scheme::kFactor);
  const int64_t elements = job->layers[0].parameters;
  const std::vector<float> whole = IntegerValues(elements, 4);
  const std::vector<Frame> frames =
      FramesOf(*job, PeerId::Worker(1), FrameKind::kFactors, 0, /*chunk=*/1,
               /*round=*/0, whole, kDensePart);
  ASSERT_EQ(frames.size(), 2u);
  for (const bool in_order : {true, false}) {
    FactorWorker worker(job, 0);
    // Both may be announced before the first one is there.
    for (const Frame& frame : frames) {
      const auto landing = worker.Announce(1, frame.header);
      ASSERT_TRUE(landing.ok()) << landing.status();
      EXPECT_EQ(landing->kind, Landing::Kind::kScratch);
    }
    DeliverAll(worker.machine(), PeerId::Worker(1), {frames[in_order ? 0 : 1]});
    DeliverAll(worker.machine(), PeerId::Worker(1), {frames[in_order ? 1 : 0]});
    const Buffer gradient = FloatBuffer(IntegerValues(elements, 9));
    EXPECT_EQ(worker.Push(0, gradient).done.size(), 1u);
    const std::vector<float> own = IntegerValues(elements, 9);
    std::vector<float> expected(elements);
    for (int64_t i = 0; i < elements; ++i) {
      expected[i] = (own[i] + whole[i]) * 0.5f;
    }
    EXPECT_EQ(FloatsOf(gradient), expected);
  }
}

// Otherwise a contribution could come twice: from the mate that made it, and
// from the carrier.
TEST(FactorExchangeTest, ACarrierHandsOnNothingOfTheOwnHost) {
  Job made = *FactorJob(4);
  for (int i = 0; i < 4; ++i) made.workers[i].host = i / 2;
  FactorWorker worker(*MakeJob(std::move(made), /*shards=*/1), 0);
  const Job& job = *worker.job();
  // Seats 0 and 1 are those of this host, 2 and 3 those of the other one.
  int accepted = 0;
  for (int seat = 0; seat < 4; ++seat) {
    FrameHeader header = FactorFrames(job, 1, 0)[0].header;
    header.kind = FrameKind::kOutcome;
    header.wire = job.WireOf(header);
    header.chunk = seat;
    const bool is_carried =
        seat >= 2 && job.CarrierOf(0, seat, 0, /*host=*/0) == 1;
    EXPECT_EQ(worker.Announce(1, header).ok(), is_carried) << seat;
    accepted += is_carried ? 1 : 0;
  }
  EXPECT_EQ(accepted, 1);
}

TEST(FactorExchangeTest, ADenseGradientThatDoesNotFitIsRefused) {
  FactorWorker worker(FactorJob(3), 0);
  const FrameHeader dense = DenseFrames(*worker.job(), 1, 0).front().header;
  const auto expect_refused = [&](const FrameHeader& header,
                                  const std::string& why) {
    const absl::Status status = worker.Announce(1, header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  FrameHeader header = dense;
  header.part = 4;
  expect_refused(header, "the part must be 0 or 1");
  header = dense;
  header.payload_bytes -= 4;
  expect_refused(header, "");
  header = dense;
  header.offset = kFrameElementsMax;
  expect_refused(header, "");
  DeliverAll(worker.machine(), PeerId::Worker(1),
             {FactorFrames(*worker.job(), 1, 0)[0]});
  expect_refused(dense, "the worker has sent factors in this round already");
}

TEST(FactorExchangeTest, FactorsOfSeveralFramesAreAssembled) {
  // 300 rows of 250 and of 219 values: 75000 and 65700, two frames each.
  const JobPtr job =
      TestJob(2, 1, {FactorLayer("fc", 250, 219, true, 300)},
              PlainSgd(OptimizerPlace::kWorker), Scheme::kFactor);
  const int64_t elements = job->layers[0].parameters;
  FactorWorker worker(job, 1);
  std::vector<float> output_gradient = IntegerValues(75000, 1);
  std::vector<float> input = IntegerValues(65700, 2);
  auto frames =
      FramesOf(*job, PeerId::Worker(0), FrameKind::kFactors, 0, /*chunk=*/0,
               /*round=*/0, output_gradient, kOutputGradientMatrix);
  for (Frame& frame : FramesOf(*job, PeerId::Worker(0), FrameKind::kFactors, 0,
                               0, 0, input, kInputMatrix)) {
    frames.push_back(std::move(frame));
  }
  ASSERT_EQ(frames.size(), 4u);
  DeliverAll(worker.machine(), PeerId::Worker(0),
             {frames[3], frames[0], frames[2], frames[1]});
  const auto own_output = IntegerValues(75000, 3);
  const auto own_input = IntegerValues(65700, 4);
  const Buffer gradient = Buffer::AllocateZeroed(elements * 4);
  const Effects pushed = worker.PushFactors(
      0, {FloatBuffer(own_output), FloatBuffer(own_input), gradient});
  EXPECT_EQ(pushed.done.size(), 1u);
  output_gradient.insert(output_gradient.end(), own_output.begin(),
                         own_output.end());
  input.insert(input.end(), own_input.begin(), own_input.end());
  std::vector<float> expected(elements);
  FactorGradient(600, 250, 219, true, 0.5f, output_gradient.data(),
                 input.data(), expected.data());
  EXPECT_EQ(FloatsOf(gradient), expected);
}

}  // namespace
}  // namespace nereus
